// SPDX-License-Identifier: Apache-2.0
// Reads docs/internals/wire.md, for the tests that hold the code to it.
#pragma once

#include <cctype>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace hoplite {

// Returns the text of docs/internals/wire.md, or "" when it can't be read.
inline std::string wire_doc() {
  std::ifstream file(HOPLITE_ROOT "/docs/internals/wire.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the bytes of the example fenced by "```hex <name>": on each line the pairs of hex digits
// up to the first word that is none.
inline std::vector<std::byte> hex_example(const std::string& doc, const std::string& name) {
  std::vector<std::byte> bytes;
  std::istringstream lines(doc);
  std::string line;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (line.starts_with("```")) inside = line == "```hex " + name;
    if (!inside || line.starts_with("```")) continue;
    std::istringstream words(line);
    std::string word;
    while (words >> word && word.size() == 2 && std::isxdigit(word[0]) && std::isxdigit(word[1])) {
      bytes.push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
    }
  }
  return bytes;
}

// True when the document has the table row "| <number> | <name> |".
inline bool has_row(const std::string& doc, int number, const std::string& name) {
  return doc.find("| " + std::to_string(number) + " | " + name + " |") != std::string::npos;
}

}  // namespace hoplite
