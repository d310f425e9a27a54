"""A Flask application behind HTTP events, through apig-wsgi."""

from apig_wsgi import make_lambda_handler
from flask import Flask, Response, jsonify, redirect, request, url_for

app = Flask(__name__)


@app.get("/pets/<name>")
def read(name):
    return jsonify(
        name=name, tags=request.args.getlist("tag"), seen=request.cookies.get("seen"), url=request.url
    )


@app.post("/pets")
def add():
    pet = request.get_json()
    if "name" not in pet:
        return jsonify(error="name"), 422
    answer = jsonify(name=pet["name"], age=pet.get("age", 1))
    answer.set_cookie("first", "1")
    answer.set_cookie("second", "2")
    return answer, 201


@app.get("/bytes")
def read_bytes():
    return Response(bytes(range(256)), mimetype="application/octet-stream")


@app.get("/old")
def move():
    return redirect(url_for("read", name="moved", _external=True), 307)


handler = make_lambda_handler(app, binary_support=True)
