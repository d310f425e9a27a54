// The services' backends, stubbed at the socket: a child process at the other end of a socket pair that answers requests
// (each with its length before it, as Thrift frames them), out of fixed tables and without allocating, so that the
// service alone is measured.
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
    // Called in the child for each request; writes its answer into `answer` and returns its length.
    using Answer = size_t (*)(const char *request, size_t length, char *answer);

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
        uint32_t length = static_cast<uint32_t>(request.size());
        if (!put(socket_, &length, sizeof length) || !put(socket_, request.data(), length) || !get(socket_, &length, sizeof length))
            throw std::runtime_error("the backend is gone");
        std::string answer(length, 0);
        if (!get(socket_, answer.data(), length)) throw std::runtime_error("the backend is gone");
        return answer;
    }

private:
    [[noreturn]] static void serve(int socket, Answer answer) {
        static char request[1 << 16], reply[1 << 16];
        for (uint32_t length; get(socket, &length, sizeof length);) {
            if (length > sizeof request || !get(socket, request, length)) _exit(1);
            length = static_cast<uint32_t>(answer(request, length, reply));
            if (!put(socket, &length, sizeof length) || !put(socket, reply, length)) _exit(1);
        }
        _exit(0);
    }

    static bool put(int socket, const void *bytes, size_t length) {
        for (ssize_t written; length > 0; length -= static_cast<size_t>(written)) {
            if ((written = write(socket, bytes, length)) <= 0) return false;
            bytes = static_cast<const char *>(bytes) + written;
        }
        return true;
    }

    static bool get(int socket, void *bytes, size_t length) {
        for (ssize_t got; length > 0; length -= static_cast<size_t>(got)) {
            if ((got = read(socket, bytes, length)) <= 0) return false;
            bytes = static_cast<char *>(bytes) + got;
        }
        return true;
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
