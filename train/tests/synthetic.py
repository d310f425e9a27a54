"""Profiles of an invented server, for tests: calling contexts like those of C++. Their lifetimes follow from
the server's use of the memory and not from one function alone (LLAMA §5.2's example: a string in a parser is
temporary, unless the parsed object is kept)."""

import random
import struct

import pyarrow as pa
import pyarrow.parquet as pq

from train.data.profiles import FREED, LEFT, VERSION

# Scene: the functions that allocate, and the class in which that memory dies.
SCENES = {
    "parse": (["codec::{T}Decoder::parseHeader({A})", "codec::{T}Decoder::decode({A})"], 0),
    "format": (["text::Formatter::append({A})", "text::{T}Printer::print({A})"], 0),
    "scale": (["image::{T}Resizer::scaleRows({A})", "image::Pipeline::run({A})"], 1),
    "request": (["http::Request::readBody({A})", "http::{T}Parser::onHeader({A})"], 2),
    "session": (["session::{T}Store::open({A})", "session::Manager::touch({A})"], 3),
    "statistics": (["stats::{T}Counter::sample({A})", "stats::Window::rotate({A})"], 4),
    "cache": (["cache::{T}Cache::insert({A})", "cache::Shard::evictAndPut({A})"], 5),
    "registry": (["config::Registry::load({A})", "config::{T}Module::registerAll({A})"], 6),
}
LEAVES = [
    [
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
        "::_M_create(unsigned long&, unsigned long)"
    ],
    [
        "std::__new_allocator<{T}>::allocate(unsigned long, void const*)",
        "std::vector<{T}, std::allocator<{T}> >::_M_realloc_insert<{T} const&>({A})",
    ],
    ["std::_Hashtable<{T}, std::pair<{T} const, int>, std::hash<{T}> >::_M_insert_unique_node({A})"],
    ["std::make_shared<proto::{T}>({A})", "proto::{T}::MergeFrom(proto::{T} const&)"],
    [],
]
TYPES = [
    f"{a}{b}"
    for a in (
        "Jpeg",
        "Png",
        "Exif",
        "User",
        "Tile",
        "Route",
        "Span",
        "Query",
        "Blob",
        "Index",
        "Font",
        "Color",
    )
    for b in ("", "Info", "View")
]
OUTER = [
    "server::Worker::handle({A})",
    "server::EventLoop::poll(int)",
    "std::thread::_State_impl<server::Worker>::_M_run()",
    "start_thread",
]
STARTUP = ["server::Application::start({A})", "main", "__libc_start_main"]


def stack_and_class(rng: random.Random) -> tuple[list[str], int]:
    """One context, innermost frame first."""
    scene = rng.choice(list(SCENES))
    frames, lifetime = SCENES[scene]
    outer = STARTUP if scene == "registry" or rng.random() < 0.05 else OUTER
    stack = [*rng.choice(LEAVES), *frames[rng.randrange(len(frames)) :]]
    if outer is STARTUP:
        lifetime = 6
    elif scene == "parse" and rng.random() < 0.4:
        # An object parsed for the cache lives as long as the cache keeps it.
        stack += SCENES["cache"][0]
        lifetime = SCENES["cache"][1]
    stack += rng.sample(
        ["proto::MessageLite::ParseFromArray(void const*, int)", "util::Retry::call({A})"], rng.randrange(3)
    )
    kind = rng.choice(TYPES)
    arguments = rng.choice(["char const*, unsigned long", "", f"{kind} const&", "int"])
    return [frame.replace("{T}", kind).replace("{A}", arguments) for frame in [*stack, *outer]], lifetime


def contexts(count: int, seed: int = 1, noise: float = 0.02) -> list[dict]:
    """Rows of a profile: `noise` of a context's objects live for some other time."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        stack, lifetime = stack_and_class(rng)
        samples = 1 + int(rng.paretovariate(0.7)) % 5000
        counts = [0] * 7
        live = 0
        for _ in range(min(samples, 200)):
            chosen = lifetime if rng.random() >= noise else rng.randrange(7)
            if chosen == 6 and rng.random() < 0.9:
                live += 1
            else:
                counts[chosen] += 1
        row = {"stack": "@".join(stack), "allocations": samples * rng.uniform(1, 9000), "live": live}
        rows.append(row | dict(zip(FREED, counts, strict=True)))
    return rows


BUILD_IDS = ["0123456789abcdef0123456789abcdef01234567", "fe" * 20]


def write(path, rows: list[dict], build: int = 0, codec: str = "zstd") -> None:
    """A profile's table with these rows, and beside it the table of functions: each frame has a place in
    one of two files, the second one being the same in every `build`. There are also functions that are in
    no context."""
    path = str(path)
    frames = sorted({frame for row in rows for frame in row["stack"].split("@")})
    build_ids = [BUILD_IDS[0] if not build else f"{build:040x}", BUILD_IDS[1]]
    at = {}
    functions = []
    for module, build_id in enumerate(build_ids):
        address = 0x1000 + 16 * build * (1 - module)
        of_module = [frame for frame in frames if frame.startswith("std::") == bool(module)]
        for name in [*of_module, "http::Parser::neverSeen(char const*)", f"lib{module}.so"]:
            size = 16 + len(name)
            at[name] = ((module + 1) << 48) | (address + size // 2)
            functions.append((module + 1, f"/opt/lib{module}.so", build_id, address, address + size, name))
            address += size + 5 * (len(name) % 2)
    columns = ["module", "path", "build_id", "start", "end", "names"]
    kinds = [pa.uint32(), pa.string(), pa.string(), pa.uint64(), pa.uint64(), pa.string()]
    beside = path.removesuffix(".parquet") + ".symbols.parquet"
    _write(beside, columns, kinds, zip(*functions, strict=True), codec)
    packed = [struct.pack(f"<{len(s)}Q", *map(at.get, s)) for s in (row["stack"].split("@") for row in rows)]
    # Objects of 64 B, unless a row says how many bytes they are.
    rows = [{"bytes": 64 * row["allocations"]} | row for row in rows]
    columns = ["stack", "allocations", "bytes", "live", *FREED]
    kinds = [pa.string(), pa.float64(), pa.float64(), *[pa.uint64()] * 8]
    if any(name in row for row in rows for name in LEFT):  # older tables have none
        rows = [dict.fromkeys(LEFT, 0) | row for row in rows]
        columns, kinds = [*columns, *LEFT], [*kinds, *[pa.uint64()] * 7]
    kinds.append(pa.binary())
    values = [*([row[name] for row in rows] for name in columns), packed]
    _write(path, [*columns, "frames"], kinds, values, codec)


def _write(path: str, columns: list[str], kinds: list, values, codec: str) -> None:
    arrays = [pa.array(value, kind) for value, kind in zip(values, kinds, strict=True)]
    schema = pa.schema(list(zip(columns, kinds, strict=True)), {"mayfly.version": VERSION})
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression=codec)
