"""Questions and answers in an SQLite database. An answer is on disk before the next question is asked."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from threading import RLock
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.serve.label.agreement import cohen_kappa
from diffaug.serve.label.kinds import SKIP, UNUSABLE, Kind, make_kind

_FORMAT = 1
_RESERVED = 600.0  # seconds for which a question that somebody looks at is not shown to others
_RECENT = 20  # answers that the pace is measured on
_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE questions (
    id INTEGER PRIMARY KEY,
    texts TEXT NOT NULL UNIQUE,          -- a JSON list
    similarity REAL, band INTEGER,       -- what it was sampled by
    people INTEGER NOT NULL,             -- how many are asked
    excluded INTEGER NOT NULL DEFAULT 0  -- a sentence of it occurs in evaluation data
);
CREATE TABLE answers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    question INTEGER NOT NULL REFERENCES questions,
    annotator TEXT NOT NULL, value TEXT NOT NULL, seconds REAL, at REAL NOT NULL,
    UNIQUE (question, annotator)
);
CREATE TABLE settled (
    question INTEGER PRIMARY KEY REFERENCES questions, value TEXT NOT NULL, annotator TEXT NOT NULL, at REAL NOT NULL
);
"""
# Files of earlier versions have no such table. The value is empty if the model gave no answer that can be used.
_SUGGESTIONS = (
    "CREATE TABLE IF NOT EXISTS suggestions (question INTEGER PRIMARY KEY REFERENCES questions, value TEXT NOT NULL)"
)


@dataclass(frozen=True)
class Answered:
    """A question with its answers.

    Attributes:
        id: of the question.
        texts: its sentences.
        answers: by annotator, without skips.
        settled: the answer that was chosen after a disagreement.
    """

    id: int
    texts: tuple[str, ...]
    answers: dict[str, str]
    settled: str | None

    def final(self, kind: Kind) -> str | None:
        """The answer; None if there is none, or people disagree."""
        if self.settled is not None:
            return self.settled
        return kind.decide(list(self.answers.values())) if self.answers else None

    def is_disputed(self, kind: Kind) -> bool:
        """Whether people disagree and nobody has decided."""
        return bool(self.answers) and self.final(kind) is None


class Store:
    """The database of one labelling job. Methods can be called from any thread.

    Args:
        path: the file; it is created if it does not exist.
        kind: what is asked.

    Raises:
        DiffaugError: the file is something else, or holds questions of another kind.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self._lock = RLock()
        self._shown: dict[int, tuple[str, float]] = {}
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # an answer survives a loss of power
            with self._transaction():
                self._open()
        except sqlite3.Error as error:
            raise DiffaugError(f"{path} cannot be used for answers: {error}; choose another --out") from error

    def _open(self) -> None:
        about = {"format": str(_FORMAT), "kind": self.kind.name}
        if self.kind.name == "classes":
            about["classes"] = json.dumps([choice.value for choice in self.kind.choices])
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(_SUGGESTIONS)
            self._db.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            return
        there = dict(self._db.execute("SELECT key, value FROM about"))
        if there.get("format") != about["format"]:
            raise DiffaugError(f"{self.path} was written by another version of diffaug; choose another --out")
        if there["kind"] != about["kind"]:
            raise DiffaugError(
                f"{self.path} has questions of the kind {there['kind']}; use --kind {there['kind']}, or another --out"
            )
        if self.kind.name == "classes":
            # Classes may be added, but an answer must not lose its meaning.
            if missing := set(json.loads(there["classes"])) - {choice.value for choice in self.kind.choices}:
                raise DiffaugError(f"{self.path} has the class {missing.pop()!r}; give it with --class too")
            self._db.execute("UPDATE about SET value = ? WHERE key = 'classes'", (about["classes"],))
        self._db.execute(_SUGGESTIONS)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def known(self) -> set[tuple[str, ...]]:
        """The sentences of all questions."""
        with self._lock:
            return {tuple(json.loads(texts)) for (texts,) in self._db.execute("SELECT texts FROM questions")}

    def add_questions(
        self, questions: Iterable[tuple[tuple[str, ...], float | None, int | None]], people: Sequence[int]
    ) -> None:
        """Add questions (sentences, similarity, band) that are not there yet, and how many people are asked each."""
        rows = [(json.dumps(texts), *by, asked) for (texts, *by), asked in zip(questions, people, strict=True)]
        insert = "INSERT OR IGNORE INTO questions (texts, similarity, band, people) VALUES (?, ?, ?, ?)"
        with self._transaction() as db:
            db.executemany(insert, rows)

    def add_answered(self, questions: Iterable[tuple[tuple[str, ...], dict[str, str]]]) -> int:
        """Add questions with answers by annotator from elsewhere, or none of them; return the number of answers.

        An answer that the same person has given here stays.
        """
        added = 0
        with self._transaction() as db:
            for texts, answers in questions:
                key = json.dumps(texts)
                people = max(1, len(answers))
                db.execute("INSERT OR IGNORE INTO questions (texts, people) VALUES (?, ?)", (key, people))
                (id,) = db.execute("SELECT id FROM questions WHERE texts = ?", (key,)).fetchone()
                for annotator, value in answers.items():
                    added += db.execute(
                        "INSERT OR IGNORE INTO answers (question, annotator, value, at) VALUES (?, ?, ?, ?)",
                        (id, annotator, value, time.time()),
                    ).rowcount
        return added

    def exclude(self, excluded: set[str]) -> None:
        """Neither ask nor export questions with one of these texts (see `same_text`); all others are asked again."""
        with self._transaction() as db:
            rows = db.execute("SELECT id, texts FROM questions").fetchall()
            wrong = [(any(same_text(text) in excluded for text in json.loads(texts)), id) for id, texts in rows]
            db.executemany("UPDATE questions SET excluded = ? WHERE id = ?", wrong)

    def next(self, annotator: str) -> tuple[int, tuple[str, ...]] | None:
        """The question to show: not answered by this person, nor by enough others, nor shown to others now."""
        with self._lock:
            now = time.time()
            self._shown = {question: shown for question, shown in self._shown.items() if now - shown[1] < _RESERVED}
            self._shown = {question: shown for question, shown in self._shown.items() if shown[0] != annotator}
            rows = self._db.execute(
                "SELECT q.id, q.texts, q.people - COUNT(a.id) AS open FROM questions q "
                "LEFT JOIN answers a ON a.question = q.id AND a.value != ? "
                "WHERE NOT q.excluded AND q.id NOT IN (SELECT question FROM answers WHERE annotator = ?) "
                "GROUP BY q.id HAVING open > 0 ORDER BY q.id",
                (SKIP, annotator),
            )
            for id, texts, places in rows:
                if places > (id in self._shown):
                    self._shown.setdefault(id, (annotator, now))
                    return id, tuple(json.loads(texts))
            return None

    def answer(self, annotator: str, question: int, value: str, seconds: float | None = None) -> bool:
        """Store an answer, on disk when this returns; False if there is no such question. A later one replaces it."""
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM questions WHERE id = ? AND NOT excluded", (question,)).fetchone():
                return False
            db.execute(
                "INSERT OR REPLACE INTO answers (question, annotator, value, seconds, at) VALUES (?, ?, ?, ?, ?)",
                (question, annotator, value, seconds, time.time()),
            )
            return True

    def undo(self, annotator: str) -> tuple[int, tuple[str, ...]] | None:
        """Delete the last answer of a person; return its question, None if there is none."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT a.id, q.id, q.texts FROM answers a JOIN questions q ON q.id = a.question "
                "WHERE a.annotator = ? AND NOT q.excluded ORDER BY a.id DESC LIMIT 1",
                (annotator,),
            ).fetchone()
            if row is None:
                return None
            db.execute("DELETE FROM answers WHERE id = ?", (row[0],))
            self._shown[row[1]] = (annotator, time.time())
            return row[1], tuple(json.loads(row[2]))

    def settle(self, annotator: str, question: int, value: str) -> bool:
        """Store the final answer to a question on which people disagree; False if they do not."""
        with self._transaction() as db:
            if not any(each.id == question and each.is_disputed(self.kind) for each in self.answered()):
                return False
            db.execute("INSERT OR REPLACE INTO settled VALUES (?, ?, ?, ?)", (question, value, annotator, time.time()))
            return True

    def answered(self) -> list[Answered]:
        """The questions that somebody has answered and did not skip, in the order of the questions."""
        with self._lock:
            rows = self._db.execute(
                "SELECT q.id, q.texts, a.annotator, a.value, s.value "
                "FROM questions q JOIN answers a ON a.question = q.id "
                "LEFT JOIN settled s ON s.question = q.id WHERE NOT q.excluded AND a.value != ? ORDER BY q.id, a.id",
                (SKIP,),
            ).fetchall()
        found: dict[int, Answered] = {}
        for id, texts, annotator, value, settled in rows:
            one = found.setdefault(id, Answered(id, tuple(json.loads(texts)), {}, settled))
            one.answers[annotator] = value
        return list(found.values())

    def progress(self, annotator: str) -> dict[str, Any]:
        """Numbers for the page: answers, questions, and this person's pace."""
        with self._lock:
            count = "SELECT COUNT(*) FROM "
            (total,) = self._db.execute(f"{count}questions WHERE NOT excluded").fetchone()
            (done,) = self._db.execute(
                f"{count}(SELECT 1 FROM answers a JOIN questions q ON q.id = a.question "
                "WHERE NOT q.excluded AND a.value != ? GROUP BY q.id)",
                (SKIP,),
            ).fetchone()
            (mine,) = self._db.execute(f"{count}answers WHERE annotator = ?", (annotator,)).fetchone()
            recent = self._db.execute(
                "SELECT seconds FROM answers WHERE annotator = ? AND seconds IS NOT NULL ORDER BY id DESC LIMIT ?",
                (annotator, _RECENT),
            ).fetchall()
        pace = median(seconds for (seconds,) in recent) if recent else None
        return {"questions": total, "answered": done, "mine": mine, "seconds_per_answer": pace}

    def agreement(self) -> list[dict[str, Any]]:
        """Cohen's kappa of each two people who have answered the same questions."""
        people: dict[str, dict[int, str]] = {}
        for one in self.answered():
            for annotator, value in one.answers.items():
                if value != UNUSABLE or self.kind.name != "scores":  # scores are numbers
                    people.setdefault(annotator, {})[one.id] = value
        found = []
        for a, b in combinations(sorted(people), 2):
            shared = sorted(people[a].keys() & people[b].keys())
            if shared:
                answers = [[people[who][id] for id in shared] for who in (a, b)]
                kappa = cohen_kappa(*answers, ordered=self.kind.name == "scores")
                found.append({"people": [a, b], "questions": len(shared), "kappa": kappa})
        return found

    def suggestion_agreement(self) -> dict[str, Any]:
        """How many answers were suggested, how many of these people have decided, and how often they agree."""
        suggested = self.suggestions()
        found = [
            (suggested[one.texts], str(one.final(self.kind))) for one, _ in self._decided() if one.texts in suggested
        ]
        # The mean of two people's scores may lie between the answers.
        agreed = sum(abs(float(a) - float(b)) < 1 if self.kind.name == "scores" else a == b for a, b in found)
        return {"suggested": len(suggested), "decided": len(found), "agreed": agreed}

    def disputes(self) -> list[Answered]:
        """Questions on which people disagree and nobody has decided."""
        return [one for one in self.answered() if one.is_disputed(self.kind)]

    def unsuggested(self, after: int = 0) -> tuple[int, tuple[str, ...]] | None:
        """A question that has neither an answer nor a suggestion, the first after this one; None if there is none."""
        with self._lock:
            row = self._db.execute(
                "SELECT id, texts FROM questions WHERE NOT excluded AND id NOT IN (SELECT question FROM suggestions) "
                "AND id NOT IN (SELECT question FROM answers WHERE value != ?) ORDER BY id <= ?, id LIMIT 1",
                (SKIP, after),
            ).fetchone()
        return None if row is None else (row[0], tuple(json.loads(row[1])))

    def suggest(self, question: int, value: str) -> None:
        """Store the answer that a model suggests; empty if it gave none."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO suggestions VALUES (?, ?)", (question, value))

    def suggestions(self) -> dict[tuple[str, ...], str]:
        """The suggested answers by the sentences of the question."""
        with self._lock:
            rows = self._db.execute(
                "SELECT q.texts, s.value FROM suggestions s JOIN questions q ON q.id = s.question "
                "WHERE s.value != '' AND NOT q.excluded"
            ).fetchall()
        return {tuple(json.loads(texts)): value for texts, value in rows}

    def suggestion(self, question: int) -> str | None:
        """The suggested answer to a question."""
        with self._lock:
            row = self._db.execute("SELECT value FROM suggestions WHERE question = ?", (question,)).fetchone()
        return row[0] or None if row is not None else None

    def rows(self) -> list[tuple[str, ...]]:
        """The labels, one row per decided question."""
        return [row for _, row in self._decided()]

    def table(self) -> list[tuple[str, ...]]:
        """The labels with a header; suggestions, if there are any, are the last column."""
        suggested = self.suggestions()
        if not suggested:
            return [self.kind.columns, *self.rows()]
        found = [
            (*row, self.kind.suggested(suggested.get(one.texts, ""), str(one.final(self.kind))))
            for one, row in self._decided()
        ]
        return [(*self.kind.columns, "suggestion"), *found]

    def _decided(self) -> Iterator[tuple[Answered, tuple[str, ...]]]:
        """The decided questions with their rows."""
        for one in self.answered():
            value = one.final(self.kind)
            if value is not None and (row := self.kind.row(one.texts, value)) is not None:
                yield one, row


def same_text(text: str) -> str:
    """What texts have in common that differ only in case, spaces and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def stored_kind(path: Path) -> Kind | None:
    """The kind of the questions in a database; None if there is no such file.

    Raises:
        DiffaugError: the file is something else.
    """
    if not path.is_file():
        return None
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as db:
            about = dict(db.execute("SELECT key, value FROM about"))
        db.close()
        return make_kind(about["kind"], json.loads(about.get("classes", "[]")))
    except (sqlite3.Error, KeyError, ValueError) as error:
        raise DiffaugError(f"{path} is not a file of answers of diffaug label; choose another --out") from error
