// The services' backends, stubbed at the socket: a child process at the other end of a socket pair that answers a line
// protocol like memcached's, out of fixed tables and without allocating, so that what is measured is the service.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

class Backend {
public:
    // Called in the child for each request line; writes its answer into `answer` and returns its length.
    using Answer = size_t (*)(const char *line, size_t length, char *answer);

    explicit Backend(Answer answer) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw std::runtime_error("socketpair");
        child_ = fork();
        if (child_ == 0) {
            close(ends[0]);
            serve(ends[1], answer);
        }
        close(ends[1]);
        socket_ = ends[0];
    }

    Backend(const Backend &) = delete;

    ~Backend() {
        close(socket_);
        waitpid(child_, nullptr, 0);
    }

    std::string call(const std::string &request) {
        for (size_t sent = 0; sent < request.size();) {
            ssize_t written = write(socket_, request.data() + sent, request.size() - sent);
            if (written <= 0) throw std::runtime_error("the backend is gone");
            sent += static_cast<size_t>(written);
        }
        std::string answer;
        char part[4096];
        do {
            ssize_t got = read(socket_, part, sizeof part);
            if (got <= 0) throw std::runtime_error("the backend is gone");
            answer.append(part, static_cast<size_t>(got));
        } while (answer.back() != '\n');
        answer.pop_back();
        return answer;
    }

private:
    [[noreturn]] static void serve(int socket, Answer answer) {
        static char request[1 << 16], reply[1 << 16];
        size_t filled = 0;
        for (;;) {
            ssize_t got = read(socket, request + filled, sizeof request - filled);
            if (got <= 0) _exit(0);
            filled += static_cast<size_t>(got);
            if (request[filled - 1] != '\n') continue;
            size_t length = answer(request, filled - 1, reply);
            reply[length++] = '\n';
            for (size_t sent = 0; sent < length;) {
                ssize_t written = write(socket, reply + sent, length - sent);
                if (written <= 0) _exit(1);
                sent += static_cast<size_t>(written);
            }
            filled = 0;
        }
    }

    int socket_ = -1;
    pid_t child_ = -1;
};

// Posts that a function is called with.
constexpr uint64_t POSTS_OF_A_CALL = 50;

// Texts of posts, the same in every run.
class Posts {
public:
    std::string next() {
        std::string text;
        for (unsigned words = 12 + number(20); words > 0; words--) {
            switch (number(8)) {
            case 0:
                text += "@user_" + std::to_string(number(500));
                break;
            case 1:
                text += "http://site" + std::to_string(number(40)) + ".example/path/" + std::to_string(number(100000));
                break;
            default:
                for (unsigned letters = 2 + number(9); letters > 0; letters--) text += static_cast<char>('a' + number(26));
            }
            text += words > 1 ? ' ' : '.';
        }
        return text;
    }

    unsigned number(unsigned below) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<unsigned>((state_ >> 33) % below);
    }

private:
    uint64_t state_ = 1;
};

inline uint64_t mixed(uint64_t digest, const std::string &text) {
    for (unsigned char c : text) digest = digest * 1099511628211u ^ c;
    return digest;
}
