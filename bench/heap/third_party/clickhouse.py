"""ClickHouse: inserts and small queries, then eight large aggregations of strings at once, then small ones.

https://clickhouse.com, as Debian builds it (18.16): threads by the dozen, and queries whose memory is all
freed when they end.
"""

import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.heap.allocators import Allocator
from bench.heap.measure import Numbers
from bench.heap.server import Server, scratch_folder
from bench.heap.third_party.life import drive, installed, server_with_probe
from bench.outcome import BenchError
from bench.processes import free_port

SERVER = "/usr/sbin/clickhouse-server"
CONFIG = """<yandex>
<logger><level>error</level><console>1</console></logger>
<listen_host>127.0.0.1</listen_host><http_port>{http}</http_port><tcp_port>{tcp}</tcp_port>
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>16777216</mark_cache_size>
</yandex>
"""
USERS = """<yandex>
<profiles><default><max_threads>4</max_threads></default></profiles>
<users><default><password></password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></default></users>
<quotas><default/></quotas>
</yandex>
"""
TABLE = """CREATE TABLE visits (day Date, page String, user UInt64, took UInt32)
ENGINE = MergeTree(day, (page, user), 8192)"""
INSERT = """INSERT INTO visits SELECT toDate('2024-01-01') + number % 28,
concat('/page/', toString(number % 5000)), number % 30000, number % 977
FROM (SELECT number + {first} AS number FROM system.numbers LIMIT {rows})"""
SMALL = """SELECT page, count(), avg(took), uniq(user) FROM visits WHERE user % 100 = {n}
GROUP BY page ORDER BY count() DESC LIMIT 20"""
LARGE = """SELECT count(), sum(length(s)), max(u) FROM (
SELECT toString(number % 50000) AS k, groupArray(concat('value ', toString(number))) AS s,
uniqExact(number) AS u
FROM (SELECT number * 7 + {n} AS number FROM system.numbers LIMIT {rows}) GROUP BY k)"""


@dataclass(frozen=True)
class Scale:
    rows: int
    small_queries: int
    large_at_once: int
    large_rows: int


FULL = Scale(rows=400_000, small_queries=200, large_at_once=8, large_rows=300_000)
QUICK = Scale(rows=100_000, small_queries=60, large_at_once=6, large_rows=100_000)


def run(allocator: Allocator, is_quick: bool) -> Numbers:
    scale = QUICK if is_quick else FULL
    with scratch_folder() as folder:
        http = free_port()
        (Path(folder) / "config.xml").write_text(CONFIG.format(http=http, tcp=free_port(), folder=folder))
        (Path(folder) / "users.xml").write_text(USERS)
        for name in ("data", "tmp"):
            (Path(folder) / name).mkdir()
        command = [installed(SERVER, "clickhouse-server"), f"--config-file={folder}/config.xml"]

        def query(text: str) -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/", text.encode(), 240) as reply:
                    return reply.read().decode()
            except urllib.error.HTTPError as error:
                raise BenchError(f"clickhouse: {error.read().decode()[:200]}") from error

        def load() -> None:
            query(TABLE)
            part = scale.rows // 4
            for first in range(0, scale.rows, part):
                query(INSERT.format(first=first, rows=part))
            small(scale.small_queries)

        def small(number: int) -> None:
            with ThreadPoolExecutor(8) as clients:
                list(clients.map(lambda n: query(SMALL.format(n=n % 100)), range(number)))

        def peak() -> None:
            with ThreadPoolExecutor(scale.large_at_once) as clients:
                texts = (LARGE.format(n=n, rows=scale.large_rows) for n in range(scale.large_at_once))
                if any(int(one.split()[1]) != scale.large_rows for one in clients.map(query, texts)):
                    raise BenchError("clickhouse: an aggregation lost rows")

        def answers(_: Server) -> bool:
            return query("SELECT 1").strip() == "1"

        with server_with_probe(allocator, command, folder, answers) as server:
            return drive(
                server,
                [("load", load), ("peak", peak), ("light", lambda: small(scale.small_queries // 4))],
            )
