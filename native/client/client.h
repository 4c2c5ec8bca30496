// SPDX-License-Identifier: Apache-2.0
// The store's part in a worker or driver process: attach to the process's own node, put, get,
// delete, reduce. Owns the Unix socket and both descriptors of the node's arena. Every method may
// be called from any thread, and none takes the GIL.
//  - Threads: it starts some during a large write, and one when the node does not read. A thread
//    that waits for a Request reads the socket for all threads (leader and followers,
//    attachment.h). So a small get costs one wake-up.
//  - Waits: only the methods with a timeout wait for the node. Beside them only write() can take
//    long.
//  - When the node dies, every pending request ends with kNodeLost; views stay valid.
//  - In a forked child every call answers kInvalidArgument ("unusable after fork").
// Design decisions 6 and 18.
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
using StopPredicate = std::function<bool()>;

class Client {
 public:
  // kNodeLost if no node listens there; kUnauthenticated if the node belongs to another user. While
  // unread_bytes_max bytes of other commands wait for the node to read, a command is refused with
  // kStoreFull.
  [[nodiscard]] static Result<std::unique_ptr<Client>> attach(
      const std::string& socket_path, std::uint64_t unread_bytes_max = kUnreadCommandsBytesMax);
  ~Client();  // as close()

  // A small object (up to kInlineBytesMax) is copied and sent at once; the request ends with Done.
  // A large object only reserves its size: the request ends with Reserved, then write() must
  // follow.
  [[nodiscard]] Result<RequestHandle> put(ObjectId object, Incarnation incarnation,
                                          std::string layout, std::vector<Part> parts,
                                          Buffers data);
  // Writes a reserved object, a part at a time, and tells the node after each, so that receivers
  // stream during the write. The last part seals the object. Returns the request that ends with
  // Done when the node has sealed it. Releases the range on an error, when `put` was cancelled, or
  // when `should_stop`, which it calls between parts, returns true.
  // REQUIRES: `put` ended with Reserved, `data` has its size. Cost: 1.8 x a warm memcpy on two
  // cores, for which it starts threads (from 16 MiB on); 2.5 x on one.
  [[nodiscard]] Result<RequestHandle> write(Request& put, Buffers data,
                                            const StopPredicate& should_stop = {});

  // A large object whose bytes the caller writes in place: the request ends with Reserved, then
  // map() must follow, once. REQUIRES: size_bytes > kInlineBytesMax.
  [[nodiscard]] Result<RequestHandle> reserve(ObjectId object, Incarnation incarnation,
                                              std::string layout, std::vector<Part> parts,
                                              std::uint64_t size_bytes);
  [[nodiscard]] Result<std::unique_ptr<Unsealed>> map(RequestHandle put);

  // Ends with a View. The object need not exist yet. With `exists` (the caller knows that it was
  // put) the request ends with kObjectLost if no node has it. With `upto_bytes` it ends when that
  // many leading bytes are here; a get of all bytes must be pending meanwhile, or nothing comes.
  [[nodiscard]] Result<RequestHandle> get(ObjectId object, bool exists = false,
                                          std::uint64_t upto_bytes = kAllBytes);
  // Like get() for each object; one system call asks for all.
  [[nodiscard]] Result<std::vector<RequestHandle>> gather(std::span<const ObjectId> objects,
                                                          bool exist = false);
  // Like get() of an object that was put. A node that has the recipe's base makes the object of it
  // and the deltas; any other node fetches it whole.
  [[nodiscard]] Result<RequestHandle> rebuild(RebuildCommand recipe);
  // Like get() of an object that is made of another one's bytes, by a node that has the other.
  // Without runs it is a question what the source is: the View has its layout and incarnation, and
  // no bytes. `exists`: the source was put.
  [[nodiscard]] Result<RequestHandle> excerpt(Excerpt wanted, bool exists = false);
  // Waits until all have finished or one has failed. Returns their number, or the place of the
  // first one that failed; nullopt if `timeout` runs out first. REQUIRES: they belong to this
  // client.
  [[nodiscard]] std::optional<std::size_t> wait_all(std::span<const RequestHandle> requests,
                                                    Duration timeout);
  // Deletes this incarnation and older ones everywhere; 0: all of them. Ends with Done.
  [[nodiscard]] Result<RequestHandle> remove(ObjectId object, Incarnation upto = Incarnation{0});

  // Declares that the object's owner has died: it stays readable until a node needs its memory.
  // Ends with Done.
  [[nodiscard]] Result<RequestHandle> orphan(ObjectId object, Incarnation upto = Incarnation{0});

  // Has other nodes keep an object that was put here, or is being put, in the arena of each, until
  // it is deleted: it has no owner any more. Ends with Done once `copies` nodes keep it, this one
  // among them, or all nodes where there are fewer. kObjectLost if it was deleted or not put here.
  [[nodiscard]] Result<RequestHandle> keep(ObjectId object, Incarnation incarnation,
                                           std::uint8_t copies);

  // Takes the newest term of a channel: no older one can publish any more. Ends with TermTaken,
  // once a majority of the members knows it.
  [[nodiscard]] Result<RequestHandle> take_term(ObjectId channel);
  // Ends with Done once the version is visible, or with VersionRefused. The same version may be
  // published again, after a lost node for example. Withdrawn, it may still become visible.
  [[nodiscard]] Result<RequestHandle> publish(ObjectId channel, Version version);
  // Ends with VersionSeen: the newest visible version, once it is newer than that. Without `wait`
  // the home answers at once, and with no version if none is newer.
  [[nodiscard]] Result<RequestHandle> watch_channel(ObjectId channel, VersionNumber newer_than,
                                                    bool wait);
  // Ends with ChannelsListed: a page of the live channels, those after that id.
  [[nodiscard]] Result<RequestHandle> list_channels(ObjectId after);
  // Tells the node which version of a channel this client has read last. Has no answer.
  [[nodiscard]] Result<void> note_read(const ReadCommand& read);

  // Ends with Done, after each earlier request that the node can answer without waiting.
  [[nodiscard]] Result<RequestHandle> echo();

  // Ends with Reduced when `count` of `source_count` sources are in and committed.
  [[nodiscard]] Result<RequestHandle> reduce(const ReduceCommand& wanted);
  // Names source `index` of that reduce; the order of the calls with `confirmed` is the order of
  // arrival. Without `confirmed` the node confirms the source as soon as some node has it.
  [[nodiscard]] Result<void> reduce_source(ObjectId target, std::uint32_t index, ObjectId object,
                                           Incarnation incarnation = Incarnation{0},
                                           bool confirmed = true);
  [[nodiscard]] Result<void> reduce_source_failed(ObjectId target, std::uint32_t index);

  // For a thread that waits for many requests: next_finished() returns `request` once it is
  // finished. kNodeLost if the node is gone or the client closed.
  [[nodiscard]] Result<void> watch(Request& request);
  // Returns the id of a watched request that has finished, each once, in order; nullopt after
  // `timeout`. kNodeLost if the node is gone or the client closed, after every id was returned.
  // Waits of other threads for one request keep their latency.
  [[nodiscard]] Result<std::optional<RequestId>> next_finished(Duration timeout);

  void close();  // idempotent; pending requests end with kNodeLost
  [[nodiscard]] NodeId node_id() const;
  [[nodiscard]] Incarnation node_incarnation() const;
  [[nodiscard]] bool is_alive() const;  // false once the node was seen dead, or closed, or forked

 private:
  explicit Client(std::shared_ptr<Attachment> attachment);
  [[nodiscard]] Result<RequestHandle> begin_put(ObjectId object, Incarnation incarnation,
                                                std::string layout, std::vector<Part> parts,
                                                std::uint64_t size_bytes, Bytes payload);
  [[nodiscard]] Result<WroteCommand> write_parts(Request& put, Buffers data, const Reserved& range,
                                                 const StopPredicate& should_stop);
  std::shared_ptr<Attachment> attachment_;
};

}  // namespace hoplite
