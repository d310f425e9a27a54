// Parts that the load generators share: clients in a closed loop, latencies, and the moments at which the driver
// measures the server's memory.
#pragma once

#include "service.h"

#include <algorithm>
#include <atomic>
#include <iostream>

namespace load {

class Client {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

  public:
    explicit Client(const char *path) {
        sockaddr_un address = service::address_of(path);
        if (connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address))
            bench::fail("%s: cannot connect: %s", path, strerror(errno));
    }
    Client(const Client &) = delete;
    ~Client() { close(fd); }

    service::Message ask(const service::Message &request) {
        std::string whole;
        if (!service::send_all(fd, request.encoded()) || !service::receive(fd, whole))
            bench::fail("the server closed the connection");
        service::Message answer = service::Message::decoded(whole);
        if (answer.fields["status"] != "ok")
            bench::fail("the server could not answer: %s", answer.body.c_str());
        return answer;
    }
};

// Reports to the driver that a phase begins (or that the load pauses); the driver answers with a line once it has
// measured.
inline void phase(const std::string &name) { std::cout << "phase " << name << std::endl; }
inline void moment(const std::string &name) {
    std::cout << "moment " << name << std::endl;
    std::string line;
    std::getline(std::cin, line);
}

// Requests in flight from `connections` clients until `count` are answered. A request depends on its number alone, so
// that every run sends the same ones, in whichever thread.
class Load {
    const char *path;
    int connections;
    uint64_t first = 0, busy_ns = 0;
    std::vector<uint32_t> latencies_us;

  public:
    Load(const char *path, int connections) : path(path), connections(connections) {}

    template <class Ask> void run(const std::string &name, uint64_t count, Ask ask) {
        phase(name);
        std::atomic<uint64_t> next{0};
        std::vector<std::vector<uint32_t>> times(connections);
        std::vector<std::thread> threads;
        uint64_t start = bench::now_ns();
        for (int i = 0; i < connections; i++)
            threads.emplace_back([&, i] {
                Client client(path);
                for (uint64_t n; (n = next++) < count;) {
                    uint64_t sent = bench::now_ns();
                    ask(client, first + n);
                    times[i].push_back(uint32_t((bench::now_ns() - sent) / 1000));
                }
            });
        for (auto &thread : threads) thread.join();
        busy_ns += bench::now_ns() - start;
        first += count;
        for (auto &some : times) latencies_us.insert(latencies_us.end(), some.begin(), some.end());
    }

    // One JSON line: the driver's speed of this run.
    void report() {
        std::sort(latencies_us.begin(), latencies_us.end());
        auto at = [&](double part) { return latencies_us[size_t(part * double(latencies_us.size() - 1))] / 1000.0; };
        printf("{\"requests\": %zu, \"busy_s\": %.4f, \"requests_per_s\": %.2f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
               latencies_us.size(), double(busy_ns) / 1e9, double(latencies_us.size()) / (double(busy_ns) / 1e9), at(0.5),
               at(0.99));
        fflush(stdout);
    }
};

} // namespace load
