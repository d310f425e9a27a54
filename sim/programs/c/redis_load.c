// Drives redis-server: redis_load REQUESTS [KEYS]
#include "store.h"

static void put(unsigned key, const char *value, size_t size) {
    ASK("*3\r\n$3\r\nSET\r\n$11\r\nkey:%07u\r\n$%zu\r\n%.*s\r\n", key, size, (int)size, value);
    EXPECT("+OK\r\n");
}

static void get(unsigned key, const char *value, size_t size) {
    ASK("*2\r\n$3\r\nGET\r\n$11\r\nkey:%07u\r\n", key);
    if (size) EXPECT("$%zu\r\n%.*s\r\n", size, (int)size, value);
    else EXPECT("$-1\r\n");
}

int main(int argc, char **argv) {
    static const char socket[] = "/tmp/redis.socket";
    program = "redis_load";
    char *const command[] = {"redis-server", "--port", "0", "--unixsocket", (char *)socket, "--save", "", "--appendonly", "no",
                             "--daemonize", "no", "--loglevel", "warning", "--logfile", "/dev/null", "--jemalloc-bg-thread", "no",
                             "--activedefrag", "no", NULL};
    pid_t server = start(socket, command);
    drive_from_arguments(&(struct protocol){"redis", put, get}, argc, argv);
    ASK("*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n");
    exchange();
    end_well(server);
}
