// Common code of a key-value store's clients: half PUT, half GET (§5), every answer checked; the second half of the requests is the
// steady state. Requests are on their way 32 at a time, as those of 32 clients on other machines would be: the server does
// not wait for each. The client is static and allocates nothing, so that the server alone is measured.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measured.h"

enum { MOST_KEYS = 1 << 20, LARGEST = 4096, TOGETHER = 32 };

// A store's protocol: each function writes a request and the expected answer, and returns their lengths.
struct protocol {
    const char *name;
    void (*put)(unsigned key, const char *value, size_t size);
    void (*get)(unsigned key, const char *value, size_t size); // size 0: there is none
};

static int connection;
static char requests[TOGETHER * (LARGEST + 256)], wanted[TOGETHER * (LARGEST + 64)], answer[sizeof wanted];
static size_t asked, expected;
static const char *program;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", program, what, strerror(errno));
    exit(1);
}

// Sends the requests, and reads as many bytes as are expected.
static void exchange(void) {
    size_t sent = 0, filled = 0;
    while (sent < asked) {
        ssize_t written = write(connection, requests + sent, asked - sent);
        if (written <= 0) fail("write");
        sent += (size_t)written;
    }
    while (filled < expected) {
        ssize_t got = read(connection, answer + filled, sizeof answer - filled);
        if (got <= 0) fail("read");
        filled += (size_t)got;
    }
    if (filled != expected || memcmp(answer, wanted, expected) != 0) {
        answer[filled < 200 ? filled : 200] = 0;
        fprintf(stderr, "%s: wrong answer: %s\n", program, answer);
        exit(1);
    }
    asked = expected = 0;
}

#define ASK(...) (asked += (size_t)sprintf(requests + asked, __VA_ARGS__))
#define EXPECT(...) (expected += (size_t)sprintf(wanted + expected, __VA_ARGS__))

static uint64_t state = 1;
static uint64_t number(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

// Sizes as key-value stores see them: most values are short, few are long.
static size_t value_size(void) {
    uint64_t of_hundred = number(100);
    if (of_hundred < 40) return 2 + number(30);
    if (of_hundred < 90) return 32 + number(470);
    return 512 + number(LARGEST - 512);
}

static void fill(char *value, size_t size, unsigned version, unsigned key) {
    for (size_t i = 0; i < size; i++) value[i] = (char)('a' + (i * 7 + version + key) % 26);
}

// The server, started with this program's environment and reached by a Unix socket.
static pid_t start(const char *path, char *const command[]) {
    unlink(path);
    pid_t server = fork();
    if (server == 0) {
        execvp(command[0], command);
        fail(command[0]);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int tries = 0; connect(connection, (struct sockaddr *)&address, sizeof address) != 0; tries++) {
        if (tries == 3000 || waitpid(server, NULL, WNOHANG) == server) fail("the server does not answer");
        usleep(10000);
    }
    return server;
}

// So many requests for so many keys; with `keys` 0 each PUT has a new one, so that the store grows for ever.
static void drive(const struct protocol *protocol, int many, unsigned keys) {
    static size_t sizes[MOST_KEYS];
    static unsigned versions[MOST_KEYS];
    static char value[LARGEST];
    unsigned gets = 0, hits = 0, made = 0;
    if (keys > MOST_KEYS || (!keys && many / 2 >= MOST_KEYS)) {
        fprintf(stderr, "%s: at most %d keys\n", program, MOST_KEYS);
        exit(2);
    }
    for (int i = 0; i < many; i++) {
        if (i == many / 4) warming();
        if (i == many / 2) measured();
        unsigned key = keys ? (unsigned)number(keys) : i % 2 == 0 ? made++ : (unsigned)number(made);
        if (i % 2 == 0) {
            sizes[key] = value_size();
            versions[key] = (unsigned)i;
            fill(value, sizes[key], versions[key], key);
            protocol->put(key, value, sizes[key]);
        } else {
            gets++;
            hits += sizes[key] > 0;
            fill(value, sizes[key], versions[key], key);
            protocol->get(key, value, sizes[key]);
        }
        if ((i + 1) % TOGETHER == 0 || i + 1 == many) exchange();
    }
    finished();
    printf("%s: %d requests, %u gets, %u hits\n", protocol->name, many, gets, hits);
}

static void drive_from_arguments(const struct protocol *protocol, int argc, char **argv) {
    drive(protocol, argc > 1 ? atoi(argv[1]) : 10000, argc > 2 ? (unsigned)atoi(argv[2]) : 1000);
}

static void end_well(pid_t server) {
    int status;
    if (waitpid(server, &status, 0) != server || status != 0) fail("the server did not end well");
}
