// The store's part in a worker or driver process: attach to the process's own node, put, get,
// delete, reduce. Owns the Unix socket and both descriptors of the node's arena. It has no thread
// but for the time of a large write, and one from when the node does not read: whoever waits for a
// Request reads the socket for everybody (leader and followers, attachment.h), so a small get costs
// one wake-up. Every method may be called from any thread, none takes the GIL, none waits for the
// node but the waits with a timeout, and beside these only write() can take long. When the node
// dies every pending request ends with kNodeLost; views stay valid. In a forked child every call
// answers kInvalidArgument ("unusable after fork"). Design decisions 6 and 18.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "client/outbox.h"
#include "client/range_writer.h"
#include "client/request.h"
#include "client/unsealed.h"
#include "plan/messages.h"

namespace hoplite {

using RequestHandle = std::shared_ptr<Request>;
using StopAsked = std::function<bool()>;

class Client {
 public:
  // kNodeLost when nobody listens there; kUnauthenticated when the node is another user's.
  // A command is refused with kStoreFull while so many bytes of others wait for the node to read.
  [[nodiscard]] static Result<std::unique_ptr<Client>> attach(
      const std::string& socket_path, std::uint64_t unread_bytes_max = kUnreadCommandsBytesMax);
  ~Client();  // as close()

  // A small object (up to kInlineBytesMax) is copied and sent at once; the request ends with Done.
  // Of a large one only the size is looked at: the request ends with Reserved, then write() must
  // follow.
  [[nodiscard]] Result<RequestHandle> put(ObjectId object, Incarnation incarnation,
                                          std::string layout, std::vector<Part> parts,
                                          Buffers data);
  // Writes a reserved object, a part at a time, and tells the node after each, so that receivers
  // stream while it is written; the last part seals the object. Returns the request that ends with
  // Done when the node has sealed it. Between parts it asks `stop_asked` now and then; when that is
  // so, or `put` was cancelled, or on any error, the range is given back.
  // REQUIRES: `put` ended with Reserved, `data` has its size. Cost: 1.8 x a warm memcpy on two
  // cores, for which it starts threads (from 16 MiB on); 2.5 x on one.
  [[nodiscard]] Result<RequestHandle> write(Request& put, Buffers data,
                                            const StopAsked& stop_asked = {});

  // A large object whose bytes are written in place: the request ends with Reserved, then map()
  // must follow, once.  REQUIRES: size_bytes > kInlineBytesMax.
  [[nodiscard]] Result<RequestHandle> reserve(ObjectId object, Incarnation incarnation,
                                              std::string layout, std::vector<Part> parts,
                                              std::uint64_t size_bytes);
  [[nodiscard]] Result<std::unique_ptr<Unsealed>> map(RequestHandle put);

  // Ends with a View. May be asked before the object exists; with `exists` (the caller knows that
  // it was put) it ends with kObjectLost when nobody has it.
  [[nodiscard]] Result<RequestHandle> get(ObjectId object, bool exists = false);
  // The same of each: all are asked by one system call.
  [[nodiscard]] Result<std::vector<RequestHandle>> gather(std::span<const ObjectId> objects,
                                                          bool exist = false);
  // Waits until all have finished (their number), or one has with an error (its place among them,
  // the first one's); nullopt when `timeout` ran out before. REQUIRES: they are this client's.
  [[nodiscard]] std::optional<std::size_t> wait_all(std::span<const RequestHandle> requests,
                                                    Duration timeout);
  // Deletes this incarnation and older ones everywhere; 0: whatever there is. Ends with Done.
  [[nodiscard]] Result<RequestHandle> remove(ObjectId object, Incarnation upto = Incarnation{0});

  // Its owner has died: readable until its memory is needed, wherever it is. Ends with Done.
  [[nodiscard]] Result<RequestHandle> orphan(ObjectId object, Incarnation upto = Incarnation{0});

  // Ends with Reduced when `count` of `source_count` sources are in and committed.
  [[nodiscard]] Result<RequestHandle> reduce(const ReduceCommand& wanted);
  // Source `index` of that reduce is confirmed now; the order of these calls is the order of
  // arrival. Or not `confirmed`: it is, by the node, as soon as some node has it.
  [[nodiscard]] Result<void> reduce_source(ObjectId target, std::uint32_t index, ObjectId object,
                                           Incarnation incarnation = Incarnation{0},
                                           bool confirmed = true);
  [[nodiscard]] Result<void> reduce_source_failed(ObjectId target, std::uint32_t index);

  // For one thread that waits for many: `request`, once it is finished, is told by next_finished().
  // kNodeLost when the node is gone or the client closed.
  [[nodiscard]] Result<void> watch(Request& request);
  // The id of a watched request that has finished, each once, in order; nullopt after `timeout`.
  // kNodeLost when the node is gone or the client closed, and every id has been told. Waits of
  // other threads for one request keep their latency.
  [[nodiscard]] Result<std::optional<RequestId>> next_finished(Duration timeout);

  void close();  // idempotent; pending requests end with kNodeLost
  [[nodiscard]] NodeId node_id() const;
  [[nodiscard]] Incarnation node_incarnation() const;
  [[nodiscard]] bool is_alive() const;  // false once the node was seen dead, or closed, or forked

 private:
  explicit Client(std::shared_ptr<Attachment> attachment);
  [[nodiscard]] Result<RequestHandle> ask_put(ObjectId object, Incarnation incarnation,
                                              std::string layout, std::vector<Part> parts,
                                              std::uint64_t size_bytes, Bytes payload);
  [[nodiscard]] Result<void> write_parts(Request& put, Buffers data, Extent extent,
                                         const StopAsked& stop_asked);
  std::shared_ptr<Attachment> attachment_;
};

}  // namespace hoplite
