// What allocates: each program is linked with one file that defines `make_peer`.
#ifndef PEER_H
#define PEER_H

#include <cuda_runtime.h>

#include <memory>
#include <string>

// Called from many threads at once, each with the device's context current.
struct Peer {
    virtual ~Peer() = default;
    // Memory for work on `stream`; ends the process if there is none.
    virtual void *alloc(size_t bytes, cudaStream_t stream) = 0;
    virtual void free(void *block, size_t bytes, cudaStream_t stream) = 0;
    // Whether `free` gives memory back; false for what was allocated beforehand.
    virtual bool frees() const { return true; }
};

// The allocator of that name; null if this program has none.
std::unique_ptr<Peer> make_peer(const std::string &name);

#endif
