// The label page: one question at a time, answered with a key or a button. The server stores an answer before it sends
// the next question, so a reload or a crash loses nothing.

let info = null;
let annotator = localStorage.getItem("annotator") || "";
let question = null;
let shownAt = 0;

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function progressText(progress) {
  const parts = [`${progress.answered.toLocaleString("en")} of ${progress.questions.toLocaleString("en")} questions answered`, `${progress.mine} by you`];
  const pace = progress.seconds_per_answer;
  if (pace) {
    const left = (progress.questions - progress.answered) * pace;
    parts.push(`${(60 / Math.max(pace, 0.1)).toFixed(0)} a minute`);
    if (left > 0) parts.push(`about ${duration(left)} left`);
  }
  return parts.join(" · ");
}

function sentence(text, i) {
  const title = info.kind === "triplets" ? ["", "1", "2"][i] : "";
  return el("div", { class: "sentence" }, title ? el("span", { class: "quiet" }, title) : null, text);
}

function answerButton(choice, listener, withKey, suggested) {
  return el("button", { type: "button", "data-value": choice.value, class: suggested ? "suggested" : null, on: { click: listener } },
    choice.text, withKey ? el("kbd", {}, choice.key) : null, suggested ? el("span", { class: "quiet" }, "suggested") : null);
}

function show(answer) {
  question = answer.question;
  shownAt = performance.now();
  byId("bar").max = Math.max(answer.progress.questions, 1);
  byId("bar").value = answer.progress.answered;
  byId("progress").textContent = progressText(answer.progress);
  const box = byId("question");
  if (question === null) {
    const none = answer.progress.questions === 0 ? "There are no questions." : "There are no more questions for you. Thank you.";
    box.replaceChildren(el("p", { id: "done" }, none));
  } else {
    box.replaceChildren(
      el("h2", {}, info.prompt),
      ...question.texts.map(sentence),
      el("div", { class: "answers" }, ...info.choices.map(
        (choice) => answerButton(choice, () => give(choice.value), true, choice.value === question.suggestion))));
  }
  byId("undo").disabled = answer.progress.mine === 0;
}

// One request at a time: a key that is held down must not answer the next question too.
async function ask(path, body) {
  const box = byId("asking");
  if (box.ariaBusy === "true") return;
  box.ariaBusy = "true";
  try {
    show(await call(path, { annotator, ...body }));
    settled();
  } catch (error) {
    complain(error);
  } finally {
    box.ariaBusy = "false";
  }
  if (byId("review").open) await review();
}

function give(value) {
  if (question) return ask("/api/answer", { question: question.id, value, seconds: (performance.now() - shownAt) / 1000 });
}

function onKey(event) {
  const typing = event.target instanceof HTMLInputElement;
  if (typing || event.repeat || event.ctrlKey || event.metaKey || event.altKey || byId("asking").hidden) return;
  const key = event.key.toLowerCase();
  if (key === "u") return ask("/api/undo", {});
  const choice = info.choices.find((each) => each.key === key);
  if (choice) {
    event.preventDefault();
    give(choice.value);
  }
}

function agreementTable(pairs) {
  if (!pairs.length) return el("p", { class: "quiet" }, "No question has been answered by two people yet.");
  const row = (pair) => el("tr", {},
    el("td", {}, pair.people.join(" and ")),
    el("td", {}, String(pair.questions)),
    el("td", {}, pair.kappa === null ? "not defined" : pair.kappa.toFixed(2)));
  const head = ["People", "Questions", "Cohen's kappa"].map((name) => el("th", { scope: "col" }, name));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...pairs.map(row)));
}

function dispute(one) {
  const settle = async (value) => {
    try {
      showReview(await call("/api/settle", { annotator, question: one.id, value }));
      settled();
    } catch (error) {
      complain(error);
    }
  };
  const choices = info.choices.filter((choice) => choice.value !== "skip");
  return el("div", { class: "dispute" },
    ...one.texts.map((text) => el("p", {}, text)),
    el("p", { class: "quiet" }, Object.entries(one.answers).map(([who, value]) => `${who}: ${value}`).join(" · ")),
    el("div", { class: "row" }, ...choices.map((choice) => answerButton(choice, () => settle(choice.value), false))));
}

function showReview(found) {
  byId("agreement").replaceChildren(agreementTable(found.agreement));
  byId("disputes").replaceChildren(
    el("h2", {}, found.disputes ? `${found.disputes} to settle` : "Nothing to settle"),
    ...found.shown.map(dispute));
}

async function review() {
  try {
    showReview(await call("/api/review"));
  } catch (error) {
    complain(error);
  }
}

function begin() {
  byId("welcome").hidden = true;
  byId("asking").hidden = false;
  byId("review").hidden = false;
  byId("learning").hidden = !info.learning;
  const other = () => {
    localStorage.removeItem("annotator");
    location.reload();
  };
  byId("who").replaceChildren(annotator, " ", el("button", { type: "button", class: "small", on: { click: other } }, "Change name"));
  return ask("/api/next", {});
}

function setName() {
  annotator = byId("name").value.trim();
  if (!annotator) return;
  localStorage.setItem("annotator", annotator);
  byId("name").blur();
  begin();
}

async function start() {
  try {
    info = await call("/api/info");
  } catch (error) {
    complain(error);
    return;
  }
  byId("title").textContent = info.title;
  byId("start").addEventListener("click", setName);
  byId("name").addEventListener("keydown", (event) => event.key === "Enter" && setName());
  byId("undo").addEventListener("click", () => ask("/api/undo", {}));
  byId("review").addEventListener("toggle", () => byId("review").open && review());
  byId("learning").addEventListener("toggle", lookAtLearning);
  document.addEventListener("keydown", onKey);
  if (annotator) begin();
  else {
    byId("asked").textContent = info.prompt;
    byId("welcome").hidden = false;
    byId("name").focus();
  }
}

start();
