// SPDX-License-Identifier: Apache-2.0
#include "node/object_trace.h"

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <variant>

namespace hoplite {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<CommandBody>> kCommands{
    "PutCommand",    "WroteCommand",        "GetCommand",    "ReleaseCommand",    "DeleteCommand",
    "ReduceCommand", "ReduceSourceCommand", "CancelCommand", "ClientLostCommand", "SetViewCommand",
    "ListCommand",   "OrphanCommand",       "DrainCommand"};
constexpr std::array<std::string_view, std::variant_size_v<PeerMessage>> kMessages{
    "Claim",     "Delete",      "Locate",    "ReduceWant", "ReduceReport", "ResyncDone",
    "Grant",     "Located",     "Push",      "PushTo",     "Lost",         "Drop",
    "ReduceOwn", "ReduceState", "PullStart", "Credit",     "PullStop",     "PullRefused",
    "Orphan",    "Adopt",       "Standing",  "Progress"};

// The object that a struct names, or null.
template <typename T>
const ObjectId* object_of(const T& value) {
  if constexpr (requires { value.object; }) {
    return &value.object;
  } else if constexpr (requires { value.target; }) {
    return &value.target;
  } else if constexpr (requires { value.header.object; }) {
    return &value.header.object;
  } else {
    return nullptr;
  }
}

template <typename... Ts>
const ObjectId* object_in(const std::variant<Ts...>& variant) {
  return std::visit([](const auto& value) { return object_of(value); }, variant);
}

void print(const ObjectId& object, std::string_view prefix, std::string_view kind) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string line = "trace ";
  for (const std::uint8_t byte : object.bytes) {
    line += kHex[byte >> 4];
    line += kHex[byte & 15];
  }
  line.append(" ").append(prefix).append(kind).append("\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void print_message(const Message& message, std::string_view prefix) {
  const ObjectId* object = object_in(message.body);
  if (object != nullptr) print(*object, prefix, kMessages[message.body.index()]);
}

}  // namespace

void ObjectTrace::tell(const Command& command) {
  const ObjectId* object = object_in(command.body);
  if (object == nullptr) return;
  if (command.request != RequestId{0}) requests_[{command.client, command.request}] = *object;
  print(*object, "", kCommands[command.body.index()]);
}

void ObjectTrace::tell(const IoEvent& event) {
  if (const auto* in = std::get_if<MessageIn>(&event)) print_message(in->message, "in:");
  const auto* landed = std::get_if<BlockLanded>(&event);
  if (landed == nullptr) return;
  const auto receive = receives_.find({landed->from, landed->transfer});
  if (receive != receives_.end()) print(receive->second, "", "BlockLanded");
}

void ObjectTrace::tell(const Action& action) {
  if (const auto* send = std::get_if<SendMessage>(&action)) print_message(send->message, "out:");
  if (const auto* block = std::get_if<SendBlock>(&action)) {
    print(block->header.object, "", "SendBlock");
  }
  if (const auto* open = std::get_if<OpenReceive>(&action)) {
    receives_[{open->from, open->transfer}] = open->object;
    print(open->object, "", "OpenReceive");
  }
  if (const auto* close = std::get_if<CloseReceive>(&action)) {
    const auto receive = receives_.find({close->from, close->transfer});
    if (receive == receives_.end()) return;
    print(receive->second, "", "CloseReceive");
    receives_.erase(receive);
  }
  if (const auto* reply = std::get_if<ReplyToClient>(&action)) {
    const auto request = requests_.find({reply->client, reply->request});
    if (request == requests_.end()) return;
    print(request->second, "", "ReplyToClient");
    requests_.erase(request);
  }
}

}  // namespace hoplite
