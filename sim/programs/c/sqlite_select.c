// SQLite SELECT: a table in memory is filled once; then point, range and join queries are parsed, planned and run, each from
// its text, since parsing allocates (§6.1). sqlite_select QUERIES
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measured.h"

// The needed part of sqlite3.h, from its documentation: the image has the library, not its header.
typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
int sqlite3_open(const char *, sqlite3 **);
int sqlite3_close(sqlite3 *);
int sqlite3_exec(sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **);
int sqlite3_prepare_v2(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
int sqlite3_step(sqlite3_stmt *);
int sqlite3_finalize(sqlite3_stmt *);
const unsigned char *sqlite3_column_text(sqlite3_stmt *, int);
const char *sqlite3_errmsg(sqlite3 *);
enum { SQLITE_OK = 0, SQLITE_ROW = 100, SQLITE_DONE = 101 };

static sqlite3 *database;

static void run(const char *text) {
    char *message = NULL;
    if (sqlite3_exec(database, text, NULL, NULL, &message) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", text, message);
        exit(1);
    }
}

static unsigned long digest = 5381;

static unsigned long query(const char *text) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(database, text, -1, &statement, NULL) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", text, sqlite3_errmsg(database));
        exit(1);
    }
    unsigned long rows = 0;
    while (sqlite3_step(statement) == SQLITE_ROW) {
        rows++;
        for (const unsigned char *c = sqlite3_column_text(statement, 1); c && *c; c++) digest = digest * 33 + *c;
    }
    sqlite3_finalize(statement);
    return rows;
}

int main(int argc, char **argv) {
    int queries = argc > 1 ? atoi(argv[1]) : 1000;
    char text[512];
    if (sqlite3_open(":memory:", &database) != SQLITE_OK) return 1;
    run("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, shop INTEGER);"
        "CREATE TABLE shop(id INTEGER PRIMARY KEY, town TEXT); CREATE INDEX by_price ON item(price); BEGIN");
    for (int i = 0; i < 3000; i++) {
        snprintf(text, sizeof text, "INSERT INTO item VALUES(%d, 'item number %d', %d, %d)", i, i, i * 7919 % 10007, i % 50);
        run(text);
    }
    for (int i = 0; i < 50; i++) {
        snprintf(text, sizeof text, "INSERT INTO shop VALUES(%d, 'town %d')", i, i * 31 % 50);
        run(text);
    }
    run("COMMIT");
    unsigned long rows = 0;
    warming();
    for (int i = 0; i < queries; i++) {
        if (i == queries / 4) measured();
        int number = i * 6151 % 10007;
        switch (i % 3) {
        case 0:
            snprintf(text, sizeof text, "SELECT id, name FROM item WHERE id = %d", number % 3000);
            break;
        case 1:
            snprintf(text, sizeof text, "SELECT id, upper(name) FROM item WHERE price BETWEEN %d AND %d ORDER BY name", number, number + 40);
            break;
        default:
            snprintf(text, sizeof text,
                     "SELECT item.id, shop.town || ' sells ' || item.name FROM item JOIN shop ON shop.id = item.shop "
                     "WHERE item.price > %d AND item.price < %d LIMIT 10",
                     number, number + 30);
        }
        rows += query(text);
    }
    finished();
    sqlite3_close(database);
    printf("sqlite_select: %d queries, %lu rows, digest %lx\n", queries, rows, digest);
}
