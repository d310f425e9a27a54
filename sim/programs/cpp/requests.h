// A service made function-like: its requests come as Thrift's bytes, go through the processor that Thrift's compiler made, and
// so do their answers.
#pragma once

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <vector>

#include "../c/measured.h"
#include "backend.h"

using apache::thrift::TProcessor;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TMemoryBuffer;

// The context that a caller's tracer sends along.
using Carrier = std::map<std::string, std::string>;
inline Carrier carrier_of(uint64_t id) { return {{"uber-trace-id", std::to_string(id * 2654435761u) + ":0:0:1"}}; }

// As the services do with it: the span that is sent on is a child of the caller's.
inline Carrier child_of(const Carrier &carrier, const std::string &name) {
    Carrier child;
    for (const auto &entry : carrier) child[entry.first] = entry.second + "/" + name;
    return child;
}

// The bytes that Client::send_... writes.
template <typename Client, typename Send> std::string bytes_of(Send send) {
    auto buffer = std::make_shared<TMemoryBuffer>();
    Client client(std::make_shared<TBinaryProtocol>(buffer));
    send(client);
    return buffer->getBufferAsString();
}

inline std::string answered(TProcessor &processor, std::string &request) {
    auto in = std::make_shared<TMemoryBuffer>(reinterpret_cast<uint8_t *>(request.data()), static_cast<uint32_t>(request.size()));
    auto out = std::make_shared<TMemoryBuffer>();
    processor.process(std::make_shared<TBinaryProtocol>(in), std::make_shared<TBinaryProtocol>(out), nullptr);
    return out->getBufferAsString();
}

// Half of them is the first call, the other half a warm one; `begins` and `ends` are called for every POSTS_OF_A_CALL.
template <typename Begin, typename Serve, typename End>
void serve_all(uint64_t requests, Begin begins, Serve serve, End ends) {
    warming();
    for (uint64_t id = 0; id < requests; id++) {
        if (id == requests / 2) measured();
        uint64_t next = std::min(id - id % POSTS_OF_A_CALL + POSTS_OF_A_CALL, requests);
        if (id % POSTS_OF_A_CALL == 0) begins(id, next);
        serve(id);
        if (id + 1 == next) ends();
    }
    finished();
}
