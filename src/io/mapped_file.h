// The bytes of a file, mapped or read into memory, for as long as anything
// holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace mlxcel {

struct ReadOptions {
  bool mmap = true;    // else the bytes are read into memory
  bool mlock = false;  // keep them in memory; throws where the system refuses
};

class MappedFile {
 public:
  // Throws CheckpointError when the file cannot be opened, mapped or read.
  static std::shared_ptr<const MappedFile> open(
      const std::filesystem::path& path, const ReadOptions& options = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const {
    return {data_, size_};
  }

 private:
  MappedFile() = default;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool file_backed_ = false;
};

// Gives back the memory of the whole pages in [data, data + size) that lie in a
// mapped file; the next read brings them back. Memory of another kind, and
// locked pages, stay. For tensors that were read once and are not needed soon.
void release_pages(const void* data, size_t size);

// A mapped file that is truncated while it is used raises SIGBUS at the next
// read. The handler writes which file it was and ends the process with status
// 1. For programs; call once, before the first model is loaded.
void install_truncation_handler();

}  // namespace mlxcel
