// Starts redis-server with this program's environment, and drives it through a Unix socket: half PUT, half GET (§5), every
// answer checked; the second half of the requests is its steady state. Requests are on their way 32 at a time, as those of 32
// clients on other machines would be: the server does not wait for each. The client is static and allocates nothing, so that what is measured is the server.
// redis_load REQUESTS
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

enum { KEYS = 1000, LARGEST = 4096, TOGETHER = 32 };

static const char SOCKET[] = "/tmp/redis.socket";
static int connection;
static char requests[TOGETHER * (LARGEST + 256)], wanted[TOGETHER * (LARGEST + 64)], answer[sizeof wanted];
static size_t asked, expected;

static void fail(const char *what) {
    fprintf(stderr, "redis_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

// Sends what is asked, and reads as many bytes as are expected.
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
        fprintf(stderr, "redis_load: wrong answer: %s\n", answer);
        exit(1);
    }
    asked = expected = 0;
}

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

int main(int argc, char **argv) {
    int many = argc > 1 ? atoi(argv[1]) : 10000;
    static size_t sizes[KEYS];
    static unsigned versions[KEYS];
    static char value[LARGEST];
    unlink(SOCKET);
    pid_t server = fork();
    if (server == 0) {
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", SOCKET, "--save", "", "--appendonly", "no", "--daemonize",
               "no", "--loglevel", "warning", "--logfile", "/dev/null", "--jemalloc-bg-thread", "no", "--activedefrag", "no", (char *)NULL);
        fail("redis-server");
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, SOCKET);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int tries = 0; connect(connection, (struct sockaddr *)&address, sizeof address) != 0; tries++) {
        if (tries == 3000 || waitpid(server, NULL, WNOHANG) == server) fail("redis-server does not answer");
        usleep(10000);
    }
    unsigned gets = 0, hits = 0;
    for (int i = 0; i < many; i++) {
        if (i == many / 4) warming();
        if (i == many / 2) measured();
        unsigned key = (unsigned)number(KEYS);
        char *request = requests + asked, *reply = wanted + expected;
        if (i % 2 == 0) {
            size_t size = value_size();
            sizes[key] = size;
            versions[key] = (unsigned)i;
            fill(value, size, versions[key], key);
            asked += (size_t)sprintf(request, "*3\r\n$3\r\nSET\r\n$8\r\nkey:%04u\r\n$%zu\r\n%.*s\r\n", key, size, (int)size, value);
            expected += (size_t)sprintf(reply, "+OK\r\n");
        } else {
            gets++;
            asked += (size_t)sprintf(request, "*2\r\n$3\r\nGET\r\n$8\r\nkey:%04u\r\n", key);
            if (sizes[key]) {
                hits++;
                fill(value, sizes[key], versions[key], key);
                expected += (size_t)sprintf(reply, "$%zu\r\n%.*s\r\n", sizes[key], (int)sizes[key], value);
            } else {
                expected += (size_t)sprintf(reply, "$-1\r\n");
            }
        }
        if ((i + 1) % TOGETHER == 0 || i + 1 == many) exchange();
    }
    finished();
    asked = (size_t)sprintf(requests, "*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n");
    exchange();
    int status;
    if (waitpid(server, &status, 0) != server || status != 0) fail("redis-server did not end well");
    printf("redis: %d requests, %u gets, %u hits\n", many, gets, hits);
}
