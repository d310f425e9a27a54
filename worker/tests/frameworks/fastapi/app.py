"""A FastAPI application behind HTTP events, through Mangum."""

from fastapi import Cookie, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from mangum import Mangum
from pydantic import BaseModel

app = FastAPI()
calls = {"startup": 0}


class Pet(BaseModel):
    name: str
    age: int = 1


@app.get("/pets/{name}")
def read(name: str, request: Request, tag: list[str] | None = None, seen: str | None = Cookie(None)):
    return {"name": name, "tags": request.query_params.getlist("tag"), "seen": seen, "url": str(request.url)}


@app.post("/pets", status_code=201)
def add(pet: Pet, response: Response):
    response.set_cookie("first", "1")
    response.set_cookie("second", "2")
    return pet


@app.get("/bytes")
def read_bytes():
    return Response(bytes(range(256)), media_type="application/octet-stream")


@app.get("/old")
def move(request: Request):
    return RedirectResponse(request.url_for("read", name="moved"), 307)


handler = Mangum(app, lifespan="off")
