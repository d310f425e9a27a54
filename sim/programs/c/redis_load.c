// Starts redis-server with this program's environment, and drives it through a Unix socket: half PUT, half GET (§5), every
// answer checked; the second half of the requests is its steady state. The client is static and allocates nothing, so that what is measured is the server.
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

enum { KEYS = 1000, LARGEST = 4096 };

static const char SOCKET[] = "/tmp/redis.socket";
static int connection;
static char answer[LARGEST + 64];
static size_t filled;

static void fail(const char *what) {
    fprintf(stderr, "redis_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void put(const char *bytes, size_t length) {
    while (length) {
        ssize_t written = write(connection, bytes, length);
        if (written <= 0) fail("write");
        bytes += written;
        length -= (size_t)written;
    }
}

// Reads until `length` bytes of the answer are there.
static void expect(const char *wanted, size_t length) {
    filled = 0;
    while (filled < length) {
        ssize_t got = read(connection, answer + filled, sizeof answer - filled);
        if (got <= 0) fail("read");
        filled += (size_t)got;
    }
    if (filled != length || memcmp(answer, wanted, length) != 0) {
        answer[filled < 200 ? filled : 200] = 0;
        fprintf(stderr, "redis_load: wrong answer: %s\n", answer);
        exit(1);
    }
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
    int requests = argc > 1 ? atoi(argv[1]) : 10000;
    static size_t sizes[KEYS];
    static unsigned versions[KEYS];
    static char value[LARGEST], request[LARGEST + 256], wanted[LARGEST + 64];
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
    for (int i = 0; i < requests; i++) {
        if (i == requests / 4) warming();
        if (i == requests / 2) measured();
        unsigned key = (unsigned)number(KEYS);
        int length;
        if (i % 2 == 0) {
            size_t size = value_size();
            sizes[key] = size;
            versions[key] = (unsigned)i;
            fill(value, size, versions[key], key);
            length = snprintf(request, sizeof request, "*3\r\n$3\r\nSET\r\n$8\r\nkey:%04u\r\n$%zu\r\n%.*s\r\n", key, size, (int)size, value);
            put(request, (size_t)length);
            expect("+OK\r\n", 5);
        } else {
            gets++;
            length = snprintf(request, sizeof request, "*2\r\n$3\r\nGET\r\n$8\r\nkey:%04u\r\n", key);
            put(request, (size_t)length);
            if (sizes[key]) {
                hits++;
                fill(value, sizes[key], versions[key], key);
                length = snprintf(wanted, sizeof wanted, "$%zu\r\n%.*s\r\n", sizes[key], (int)sizes[key], value);
            } else {
                length = snprintf(wanted, sizeof wanted, "$-1\r\n");
            }
            expect(wanted, (size_t)length);
        }
    }
    put("*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n", 30);
    int status;
    if (waitpid(server, &status, 0) != server || status != 0) fail("redis-server did not end well");
    printf("redis: %d requests, %u gets, %u hits\n", requests, gets, hits);
}
