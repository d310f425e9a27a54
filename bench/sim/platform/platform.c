// OpenFaaS on this machine, and its client (§5): platform up|deploy|invoke [TIMES]
//
//   up      the platform's start, until its gateway answers that it and its provider are healthy
//   deploy  registers functions, TIMES of them
//   invoke  requests to a function that is deployed
//
// Before the last two, the client sends half as many requests, so that the measured platform is warm (§5). This program
// allocates nothing: the gateway and the provider are measured, which are in it as files.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measured.h"

// clang-format off
#define FILE_IN_HERE(name, path) \
    __asm__(".section .rodata\n" #name ": .incbin " #path "\n" #name "_end: .previous"); \
    extern const char name[], name##_end[]
// clang-format on
#define EXPANDED(name, path) FILE_IN_HERE(name, path)
EXPANDED(gateway, GATEWAY);
EXPANDED(provider, PROVIDER);

enum { GATEWAY_PORT = 8080 };
#define PROVIDER_PORT "8081"

static void fail(const char *what) {
    fprintf(stderr, "platform: %s: %s\n", what, strerror(errno));
    exit(1);
}

// The machine has no network but this.
static void loopback(void) {
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(request.ifr_name, "lo");
    if (ioctl(any, SIOCSIFFLAGS, &request)) fail("loopback");
    close(any);
}

static void start(const char *name, const char *program, const char *end) {
    if (fork() != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int file = memfd_create(name, 0);
    for (ssize_t wrote; program < end; program += wrote)
        if ((wrote = write(file, program, (size_t)(end - program))) <= 0) fail(name);
    // Their logs are discarded.
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(1);
    static char *const environment[] = {"GOGC=off", "GOMAXPROCS=1", "GODEBUG=gcstoptheworld=1", "HOME=/tmp", "port=" PROVIDER_PORT,
                                        "functions_provider_url=http://127.0.0.1:" PROVIDER_PORT "/", NULL};
    fexecve(file, (char *const[]){(char *)name, NULL}, environment);
    _exit(127);
}

static int reach(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(GATEWAY_PORT)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) return connection;
    close(connection);
    return -1;
}

// A request, and the status and the length of the answer, whose body is left in `answer`.
static char answer[65536], *body;
static int ask(int connection, const char *method, const char *path, const char *content) {
    char request[4096];
    int size = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: gateway:8080\r\nContent-Length: %zu\r\n\r\n%s", method,
                        path, strlen(content), content);
    if (write(connection, request, (size_t)size) != size) fail("write");
    for (size_t filled = 0;;) {
        ssize_t got = read(connection, answer + filled, sizeof answer - 1 - filled);
        if (got <= 0) fail("the gateway's answer");
        filled += (size_t)got;
        answer[filled] = 0;
        if (!(body = strstr(answer, "\r\n\r\n"))) continue;
        body += 4;
        char *length = strcasestr(answer, "Content-Length: ");
        if (length && length < body && (size_t)(answer + filled - body) >= strtoul(length + 16, NULL, 10)) break;
    }
    return atoi(answer + 9);
}

static int is_healthy(void) {
    int connection = reach();
    if (connection < 0) return 0;
    int status = ask(connection, "GET", "/healthz", "");
    close(connection);
    return status == 200;
}

static void deploy(int connection, int number) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"service\":\"thumbnail-%d\",\"image\":\"functions/thumbnail:0.%d\",\"namespace\":\"openfaas-fn\",\"envProcess\":\"handler\","
             "\"envVars\":{\"write_timeout\":\"10s\",\"read_timeout\":\"10s\",\"bucket\":\"pictures-%d\"},\"secrets\":[\"s3-key\"],"
             "\"labels\":{\"com.openfaas.scale.min\":\"1\",\"com.openfaas.scale.max\":\"5\"},\"annotations\":{\"topic\":\"uploads\"},"
             "\"limits\":{\"memory\":\"128Mi\",\"cpu\":\"100m\"},\"readOnlyRootFilesystem\":true}",
             number, number % 7, number);
    if (ask(connection, "POST", "/system/functions", text) != 200) fail("deploy");
}

static void invoke(int connection, int number) {
    char text[512];
    snprintf(text, sizeof text, "{\"key\":\"uploads/2022/%06d.jpg\",\"width\":%d,\"height\":%d}", number, 100 + number % 90, 80);
    if (ask(connection, "POST", "/function/thumbnail-0", text) != 200 || !strstr(body, "thumbnail-0")) fail("invoke");
}

int main(int argc, char **argv) {
    const char *operation = argc > 1 ? argv[1] : "";
    int times = argc > 2 ? atoi(argv[2]) : 20, is_up = strcmp(operation, "up") == 0, is_deploy = strcmp(operation, "deploy") == 0;
    if (!is_up && !is_deploy && strcmp(operation, "invoke") != 0)
        return fprintf(stderr, "usage: platform up|deploy|invoke [TIMES]\n"), 2;
    loopback();
    if (is_up) warming(), measured();
    start("provider", provider, provider_end);
    start("gateway", gateway, gateway_end);
    while (!is_healthy()) usleep(1000);
    if (is_up) finished();
    int connection = reach();
    if (!is_up) {
        deploy(connection, 0);
        warming();
        for (int i = 0; i < times + times / 2; i++) {
            if (i == times / 2) measured();
            if (is_deploy) deploy(connection, i + 1);
            else invoke(connection, i);
        }
        finished();
    }
    printf("platform: %s, %d times\n", operation, is_up ? 1 : times);
    return 0;
}
