/* Keeps CONNECTIONS connections to a server on this machine busy, one request at a time each, for SECONDS:
 *
 *   load PORT PATH BODY CONNECTIONS SECONDS
 *
 * prints requests a second, and P50 and P99 of a request in ms. Where the server closes after an answer, load connects again, as
 * a part of the next request. It exits at an answer other than 200.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 22, ROOM = 1 << 16 };

struct connection {
    int socket;
    double begun;
    size_t have;
    char answer[ROOM];
};

static char request[ROOM];
static size_t request_bytes;
static struct sockaddr_in server;
static int queue;

static void fail(const char *reason) {
    fprintf(stderr, "load: %s\n", reason);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void ask(struct connection *to) {
    to->begun = now();
    to->have = 0;
    if (to->socket < 0) {
        int on = 1;
        to->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (to->socket < 0 || connect(to->socket, (struct sockaddr *)&server, sizeof server)) fail("cannot connect");
        setsockopt(to->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = to};
        epoll_ctl(queue, EPOLL_CTL_ADD, to->socket, &wanted);
    }
    if (send(to->socket, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) fail("cannot send");
}

/* Whether the answer is complete; `closes` if the server closes this connection after it. */
static int is_whole(struct connection *from, int *closes) {
    from->answer[from->have] = 0;
    char *end = strstr(from->answer, "\r\n\r\n");
    if (!end) return 0;
    if (strncmp(from->answer, "HTTP/1.1 200", 12)) fail("an answer is not 200");
    *closes = strcasestr(from->answer, "\r\nconnection: close") != NULL;
    char *length = strcasestr(from->answer, "\r\ncontent-length:");
    if (!length || length > end) fail("an answer without Content-Length");
    return from->have >= (size_t)(end + 4 - from->answer) + strtoul(length + 17, NULL, 10);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int count, char **words) {
    if (count != 6) fail("usage: load PORT PATH BODY CONNECTIONS SECONDS");
    int connections = atoi(words[4]);
    double *times = malloc(MOST * sizeof *times), seconds = atof(words[5]);
    struct connection *all = calloc(connections, sizeof *all);
    if (!times || !all) fail("no memory");
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    request_bytes = snprintf(request, sizeof request, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s",
                             words[2], strlen(words[3]), words[3]);
    if (request_bytes >= sizeof request) fail("the request is too long");
    queue = epoll_create1(EPOLL_CLOEXEC);
    double begun = now();
    for (int i = 0; i < connections; i++) all[i].socket = -1, ask(&all[i]);
    int done = 0;
    while (now() < begun + seconds && done < MOST) {
        struct epoll_event ready[64];
        int number = epoll_wait(queue, ready, 64, 1000);
        for (int i = 0; i < number && done < MOST; i++) {
            struct connection *one = ready[i].data.ptr;
            ssize_t got = recv(one->socket, one->answer + one->have, ROOM - 1 - one->have, 0);
            int closes = 0;
            if (got <= 0) fail("a connection was closed within an answer");
            one->have += got;
            if (!is_whole(one, &closes)) continue;
            times[done++] = 1000 * (now() - one->begun);
            if (closes) {
                close(one->socket);
                one->socket = -1;
            }
            ask(one);
        }
    }
    if (!done) fail("no answer");
    double took = now() - begun;
    qsort(times, done, sizeof *times, by_size);
    printf("%.1f %.4f %.4f\n", done / took, times[done / 2], times[done * 99 / 100]);
}
