"""A web server: embeddings as OpenAI's clients ask for them, search, and a page on which people label sentences.

Needs the extra ``serve`` (Starlette and uvicorn). Imported only by the commands `diffaug serve` and `diffaug label`.
"""
