// Parts that the servers and their load generators share: messages over a Unix socket, and a pool of worker threads
// that answers them. A message is a line of NAME=VALUE words and a body; on the wire its length comes first.
//
// One thread reads each connection and queues the messages for the workers: a request is allocated in one thread and
// freed in another, as in the servers of LLAMA §9.
#pragma once

#include "report.h"

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <vector>

namespace service {

// Larger than any request or answer: a longer message is none.
static const uint32_t most_message_bytes = 256u << 20;

struct Message {
    std::map<std::string, std::string> fields;
    std::string body;

    const std::string &text(const std::string &name) const {
        auto found = fields.find(name);
        if (found == fields.end()) throw std::runtime_error("no field " + name);
        return found->second;
    }
    int number(const std::string &name) const { return std::stoi(text(name)); }

    std::string encoded() const {
        std::string line;
        for (auto &[name, value] : fields) line += name + '=' + value + ' ';
        uint32_t length = uint32_t(line.size() + 1 + body.size());
        std::string whole(reinterpret_cast<const char *>(&length), sizeof length);
        return whole += line + '\n' + body;
    }

    static Message decoded(const std::string &whole) {
        Message message;
        size_t end = whole.find('\n');
        if (end == std::string::npos) throw std::runtime_error("a message without its first line");
        for (size_t at = 0; at < end;) {
            size_t space = std::min(whole.find(' ', at), end), equals = whole.find('=', at);
            if (equals > space) throw std::runtime_error("a word without '='");
            message.fields[whole.substr(at, equals - at)] = whole.substr(equals + 1, space - equals - 1);
            at = space + 1;
        }
        message.body = whole.substr(end + 1);
        return message;
    }
};

inline bool read_all(int fd, char *into, size_t length) {
    while (length) {
        ssize_t got = recv(fd, into, length, 0);
        if (got <= 0) return false;
        into += got, length -= size_t(got);
    }
    return true;
}

// The next message's bytes; false at the connection's end.
inline bool receive(int fd, std::string &whole) {
    uint32_t length;
    if (!read_all(fd, reinterpret_cast<char *>(&length), sizeof length)) return false;
    if (length > most_message_bytes) return false;
    whole.resize(length);
    return read_all(fd, whole.data(), length);
}

inline bool send_all(int fd, const std::string &bytes) {
    for (size_t at = 0; at < bytes.size();) {
        ssize_t sent = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += size_t(sent);
    }
    return true;
}

inline sockaddr_un address_of(const char *path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (strlen(path) >= sizeof address.sun_path) bench::fail("%s: too long for a socket's path", path);
    strcpy(address.sun_path, path);
    return address;
}

// A queue between threads; `take` gives nothing once it is closed and empty.
template <class T> class Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<T> waiting;
    size_t most;
    bool closed = false;

  public:
    explicit Queue(size_t most = SIZE_MAX) : most(most) {}
    void put(T one) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return waiting.size() < most; });
        waiting.push_back(std::move(one));
        changed.notify_all();
    }
    bool take(T &one) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return closed || !waiting.empty(); });
        if (waiting.empty()) return false;
        one = std::move(waiting.front());
        waiting.pop_front();
        changed.notify_all();
        return true;
    }
    void close() {
        std::unique_lock lock(mutex);
        closed = true;
        changed.notify_all();
    }
};

// Answers on `path` with `workers` threads until SIGTERM; then everything is joined, so that the process ends as
// programs do and every tool that reports at exit can.
class Service {
    using Handler = std::function<Message(const Message &)>;
    struct Connection {
        int fd;
        explicit Connection(int fd) : fd(fd) {}
        Connection(const Connection &) = delete;
        ~Connection() { close(fd); }
    };
    struct Task {
        std::shared_ptr<Connection> from;
        std::unique_ptr<Message> request;
    };
    Handler handler;
    Queue<Task> tasks;
    std::mutex mutex;
    std::vector<std::weak_ptr<Connection>> connections;
    std::vector<std::thread> readers;

    void read(std::shared_ptr<Connection> connection) {
        std::string whole;
        while (receive(connection->fd, whole))
            tasks.put({connection, std::make_unique<Message>(Message::decoded(whole))});
    }

    void work() {
        Task task;
        while (tasks.take(task)) {
            Message answer;
            try {
                answer = handler(*task.request);
            } catch (const std::exception &error) {
                answer.fields["status"] = "failed";
                answer.body = error.what();
            }
            send_all(task.from->fd, answer.encoded());
            task = {};
        }
    }

    void accept_from(int listener) {
        for (int fd; (fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
            auto connection = std::make_shared<Connection>(fd);
            std::lock_guard lock(mutex);
            connections.push_back(connection);
            readers.emplace_back([this, connection] { read(connection); });
        }
    }

  public:
    // To be called first of all, before any thread is started: SIGTERM is for `run` alone.
    static void block_signals() {
        sigset_t ends;
        sigemptyset(&ends);
        sigaddset(&ends, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    }

    void run(const char *path, int workers, Handler handle) {
        handler = std::move(handle);
        sockaddr_un address = address_of(path);
        int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) || listen(listener, 1024))
            bench::fail("%s: cannot listen: %s", path, strerror(errno));
        std::vector<std::thread> pool;
        for (int i = 0; i < workers; i++) pool.emplace_back([this] { work(); });
        std::thread acceptor([&] { accept_from(listener); });

        sigset_t ends;
        sigemptyset(&ends);
        sigaddset(&ends, SIGTERM);
        int signal;
        sigwait(&ends, &signal);
        shutdown(listener, SHUT_RDWR);
        acceptor.join();
        for (auto &one : connections)
            if (auto connection = one.lock()) shutdown(connection->fd, SHUT_RDWR);
        for (auto &reader : readers) reader.join();
        tasks.close();
        for (auto &worker : pool) worker.join();
        close(listener);
    }
};

} // namespace service
