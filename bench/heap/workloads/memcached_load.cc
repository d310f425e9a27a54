// A load for memcached, over its Unix socket: sets, gets and deletes on many connections, every answer
// checked.
//
//   memcached_load SOCKET REQUESTS [CONNECTIONS] [KEYS]
//
// Connections open and close, so that the server allocates and frees their buffers. Prints requests per
// second as JSON.
#include "report.h"

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <sys/un.h>

using namespace bench;

// Small enough that a batch and its answers fit the socket's buffers: neither side can wait for the other.
static const int batch_requests = 16;
static const size_t most_value_bytes = 4000;

struct Connection {
    int fd = -1;
    size_t used = 0, at = 0; // of `input`
    char input[1 << 15];
};

static const char *socket_path;

static void dial(Connection &connection) {
    if (connection.fd >= 0) close(connection.fd);
    connection.used = connection.at = 0;
    connection.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    if (connect(connection.fd, reinterpret_cast<sockaddr *>(&address), sizeof address))
        fail("%s: cannot connect: %s", socket_path, strerror(errno));
}

static void send_all(Connection &connection, const char *from, size_t length) {
    while (length) {
        ssize_t sent = send(connection.fd, from, length, MSG_NOSIGNAL);
        if (sent <= 0) fail("memcached closed the connection: %s", strerror(errno));
        from += sent;
        length -= sent;
    }
}

// Returns the next `length` bytes of the answer.
static void receive(Connection &connection, char *into, size_t length) {
    while (length) {
        if (connection.at == connection.used) {
            ssize_t got = recv(connection.fd, connection.input, sizeof connection.input, 0);
            if (got <= 0) fail("memcached closed the connection");
            connection.used = got;
            connection.at = 0;
        }
        size_t part = std::min(length, connection.used - connection.at);
        memcpy(into, connection.input + connection.at, part);
        connection.at += part;
        into += part;
        length -= part;
    }
}

static void receive_line(Connection &connection, char *line, size_t size) {
    for (size_t n = 0; n + 1 < size; n++) {
        receive(connection, line + n, 1);
        if (line[n] == '\n') {
            line[n - 1] = 0; // "\r\n"
            return;
        }
    }
    fail("memcached sent a line of more than %zu bytes", size);
}

// A value follows from its key alone, so that any answer can be checked. Sizes are skewed to small ones.
static size_t value_bytes(uint64_t key) {
    Random random(key + 1);
    uint64_t limit = random.below(4) ? 500 : most_value_bytes - 100;
    return 100 + random.below(limit);
}

static void write_value(char *value, uint64_t key, size_t bytes) {
    for (size_t n = 0; n < bytes; n++) value[n] = char('a' + (key + n) % 26);
}

int main(int argc, char **argv) {
    if (argc < 3) fail("usage: memcached_load SOCKET REQUESTS [CONNECTIONS] [KEYS]");
    socket_path = argv[1];
    const uint64_t requests = argument(argc, argv, 2, 0);
    const size_t connections = argument(argc, argv, 3, 200);
    const uint64_t keys = argument(argc, argv, 4, 200000);
    auto *connection = new Connection[connections];
    for (size_t i = 0; i < connections; i++) dial(connection[i]);

    Random random(42);
    uint64_t done = 0, hits = 0, misses = 0, batches = 0;
    static char output[batch_requests * (most_value_bytes + 100)], value[most_value_bytes], expected[most_value_bytes];
    uint64_t start = now_ns();
    while (done < requests) {
        Connection &one = connection[random.below(connections)];
        if (++batches % 50 == 0) dial(one);
        uint64_t key[batch_requests], kind[batch_requests];
        size_t length = 0;
        for (int n = 0; n < batch_requests; n++) {
            key[n] = random.below(keys);
            kind[n] = random.below(10);
            if (kind[n] < 3) { // set
                size_t bytes = value_bytes(key[n]);
                length += sprintf(output + length, "set k%" PRIu64 " 0 0 %zu\r\n", key[n], bytes);
                write_value(output + length, key[n], bytes);
                length += bytes;
                length += sprintf(output + length, "\r\n");
            } else { // delete, get
                length += sprintf(output + length, "%s k%" PRIu64 "\r\n", kind[n] == 3 ? "delete" : "get", key[n]);
            }
        }
        send_all(one, output, length);
        for (int n = 0; n < batch_requests; n++) {
            char line[128];
            receive_line(one, line, sizeof line);
            if (kind[n] < 3) {
                if (strcmp(line, "STORED")) fail("set k%" PRIu64 ": memcached answered '%s'", key[n], line);
            } else if (kind[n] == 3) {
                if (strcmp(line, "DELETED") && strcmp(line, "NOT_FOUND")) fail("delete: memcached answered '%s'", line);
            } else if (!strcmp(line, "END")) {
                misses++;
            } else {
                char wanted[128];
                size_t bytes = value_bytes(key[n]);
                snprintf(wanted, sizeof wanted, "VALUE k%" PRIu64 " 0 %zu", key[n], bytes);
                if (strcmp(line, wanted)) fail("get: wanted '%s', memcached answered '%s'", wanted, line);
                receive(one, value, bytes);
                write_value(expected, key[n], bytes);
                if (memcmp(value, expected, bytes)) fail("get k%" PRIu64 ": the value came back changed", key[n]);
                receive_line(one, line, sizeof line);
                receive_line(one, line, sizeof line);
                if (strcmp(line, "END")) fail("get k%" PRIu64 ": memcached answered '%s' for END", key[n], line);
                hits++;
            }
        }
        done += batch_requests;
    }
    double seconds = (now_ns() - start) / 1e9;
    printf("{\"time_ms\":%.3f,\"requests_per_s\":%.0f,\"hits\":%" PRIu64 ",\"misses\":%" PRIu64 "}\n", seconds * 1000,
           done / seconds, hits, misses);
}
