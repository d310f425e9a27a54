"""What `sam local` and the worker read of one template, compared. Account, stack name and suffixes differ
by design, and so do attributes that only an account has: `sam local` makes each `Arn` one of a function, and
leaves others empty."""

import re

ACCOUNTS = ("123456789012", "000000000000")
STACKS = re.compile(r"\b(local|mayfly)\b")
STACK_ID = re.compile(r"(:stack/[^/]+/)[\w-]+")
SUFFIXES = re.compile(r"\.(localhost|amazonaws\.com)\b")
ARN_OF_FUNCTION = re.compile(r"arn:aws:lambda:[\w-]*:\d*:function:")
# sam's methods of ANY.
METHODS = ["GET", "DELETE", "PUT", "POST", "HEAD", "OPTIONS", "PATCH"]
PROPERTIES = {
    "FunctionName": "name",
    "Runtime": "runtime",
    "Handler": "handler",
    "MemorySize": "memory",
    "Timeout": "timeout",
}


def plain(value: object) -> str:
    text = "" if value is None else str(value)
    for account in ACCOUNTS:
        text = text.replace(account, "ACCOUNT")
    return SUFFIXES.sub(".SUFFIX", STACK_ID.sub(r"\1ID", STACKS.sub("STACK", text)))


def is_of_account(sam: str | None, own: str) -> bool:
    """Whether two values differ in what only an account has."""
    if sam is None:
        return True
    return bool(ARN_OF_FUNCTION.search(sam) or re.search(r"\$\w+\.\w+", sam)) and bool(
        re.search(r"arn:|\w+\.\w+", own)
    )


def differences(sam: dict, own: dict) -> list[tuple[str, str]]:
    """Kinds and lines."""
    theirs = {one["Id"]: one for one in sam["functions"]}
    ours = {one["Id"]: one for one in own["Functions"]}
    left_out = {
        found[1] for note in own["Notes"] if (found := re.match(r"Resources\.(\w+): the condition", note))
    }
    found = []
    for id in sorted(set(theirs) - set(ours)):
        # sam local serves resources whose condition does not hold, too.
        kind = "account: conditions" if id.split("/")[-1] in left_out else "functions"
        found.append((kind, f"{id} is lacking"))
    for id in sorted(set(theirs) & set(ours)):
        found += [(kind, f"{id}: {line}") for kind, line in of_function(theirs[id], ours[id])]
    return found + of_routes(sam["routes"], own["HttpApis"], set(theirs), ours)


def of_function(sam: dict, own: dict):
    for key, kind in PROPERTIES.items():
        one, other = sam[key], own.get(key)
        if plain(one) == plain(other):
            continue
        if key == "FunctionName" and (one is None or own["FunctionName"].startswith(str(one)[:55])):
            yield "account: names", f"{one} is {other}"
        else:
            yield kind, f"{one!r} is {other!r}: {own['StateReason']}"
    names = sam["Environment"].keys() ^ own["Environment"].keys()
    if names:
        yield "environment", f"only one has {', '.join(sorted(names))}"
    for name in sam["Environment"].keys() & own["Environment"].keys():
        one, other = sam["Environment"][name], own["Environment"][name]
        if plain(one) != plain(other):
            kind = "account: attributes" if is_of_account(one, other) else "environment"
            yield kind, f"{name}: {one!r} is {other!r}"
    if len(sam["Layers"]) != len(own["Layers"]):
        yield "layers", f"{sam['Layers']} are {own['Layers']}"
    url = (own.get("FunctionUrlConfig") or {}).get("AuthType")
    if sam["Url"] != url:
        yield "urls", f"{sam['Url']!r} is {url!r}"


def of_routes(sam: list | str, own: list, known: set, ours: dict) -> list[tuple[str, str]]:
    """OPTIONS is left out: sam local lists it where CORS answers it. Failed functions have no routes."""
    if isinstance(sam, str):
        return []
    ids = {one["FunctionName"]: id for id, one in ours.items()}
    served = {id for id, one in ours.items() if not one["StateReason"]} & known
    mine = set()
    for api in own:
        kind = "Api" if api["Type"] == "REST" else "HttpApi"
        for route in api["Routes"]:
            methods = METHODS if route["Method"] == "ANY" else [route["Method"]]
            id = ids.get(re.sub(r"^arn:.*:function:", "", route["Function"]).split(":")[0])
            mine |= {(kind, method, path_of(route["Path"]), id) for method in methods}
    theirs = {(kind, method.upper(), path_of(path), id) for kind, method, path, id in sam}
    both = [{one for one in of if one[3] in served and one[1] != "OPTIONS"} for of in (theirs, mine)]
    lacking, more = both[0] - both[1], both[1] - both[0]
    lines = [f"only sam local has {sorted(lacking)[:4]}"] if lacking else []
    lines += [f"only the worker has {sorted(more)[:4]}"] if more else []
    return [("routes", line) for line in lines]


def path_of(path: str) -> str:
    path = path if path.startswith(("/", "$")) else f"/{path}"
    return path.rstrip("/") or "/"
