#include "io/mapped_file.h"

#include "core/error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace mlxcel {

namespace {

// Mappings by address for the signal handler, which may neither lock nor
// allocate. Entries are reused and never freed.
struct MappingRecord {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<const char*> path{nullptr};
  MappingRecord* next = nullptr;
};

std::atomic<MappingRecord*> mapping_records{nullptr};

void record_mapping(const void* data, size_t size, const std::string& path) {
  auto begin = reinterpret_cast<uintptr_t>(data);
  char* name = ::strdup(path.c_str());
  for (MappingRecord* record = mapping_records; record != nullptr;
       record = record->next) {
    const char* free_slot = nullptr;
    if (record->path.compare_exchange_strong(free_slot, name)) {
      record->end = begin + size;
      record->begin = begin;
      return;
    }
  }
  auto* record = new MappingRecord;
  record->path = name;
  record->end = begin + size;
  record->begin = begin;
  record->next = mapping_records;
  while (!mapping_records.compare_exchange_weak(record->next, record)) {
  }
}

void forget_mapping(const void* data) {
  auto begin = reinterpret_cast<uintptr_t>(data);
  for (MappingRecord* record = mapping_records; record != nullptr;
       record = record->next) {
    if (record->begin == begin) {
      record->begin = 0;
      std::free(const_cast<char*>(record->path.exchange(nullptr)));
      return;
    }
  }
}

void write_all(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written <= 0) {
      return;
    }
    text += written;
    left -= size_t(written);
  }
}

void on_bus_error(int signal_number, siginfo_t* info, void*) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappingRecord* record = mapping_records; record != nullptr;
       record = record->next) {
    const char* path = record->path;
    uintptr_t begin = record->begin;
    if (path != nullptr && begin != 0 && address >= begin &&
        address < record->end) {
      write_all("mlxcel: ");
      write_all(path);
      write_all(
          ": the file became shorter, or its disk failed, while it was in "
          "use\n  restore the file and start again; --no-mmap reads it into "
          "memory instead\n");
      ::_exit(1);
    }
  }
  // Not ours: the default action, at the same instruction.
  ::signal(signal_number, SIG_DFL);
}

[[noreturn]] void refuse(const std::string& path, int code, std::string fix) {
  throw CheckpointError(
      cat("cannot read ", path), std::strerror(code), std::move(fix));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

void read_fully(int fd, std::byte* out, size_t size, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    // Linux moves at most 0x7ffff000 bytes a call.
    size_t chunk = std::min(size - done, size_t(1) << 30);
    ssize_t count = ::pread(fd, out + done, chunk, off_t(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      refuse(path, errno, "check the disk");
    }
    if (count == 0) {
      throw CheckpointError(
          cat("cannot read ", path),
          cat("it ended after ", done, " of ", size, " bytes"),
          "the file became shorter while it was read; fetch it again");
    }
    done += size_t(count);
  }
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(
    const std::filesystem::path& path, const ReadOptions& options) {
  std::string name = path.string();
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    refuse(name, errno, "check that the file exists and is readable");
  }
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) {
    refuse(name, errno, "check the disk");
  }
  if (!S_ISREG(status.st_mode)) {
    throw CheckpointError(cat("cannot read ", name), "it is not a file");
  }
  std::shared_ptr<MappedFile> out(new MappedFile);
  size_t size = size_t(status.st_size);
  if (size == 0) {
    return out;
  }
  int flags = options.mmap ? MAP_PRIVATE : MAP_PRIVATE | MAP_ANONYMOUS;
  int protection = options.mmap ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data =
      ::mmap(nullptr, size, protection, flags, options.mmap ? file.fd : -1, 0);
  if (data == MAP_FAILED) {
    refuse(
        name,
        errno,
        options.mmap ? "if its file system cannot map files, use --no-mmap"
                     : "the file does not fit into memory");
  }
  out->data_ = static_cast<const std::byte*>(data);
  out->size_ = size;
  out->file_backed_ = options.mmap;
  // A hint; failing is harmless. File systems with large folios (ext4 since
  // Linux 6.16, XFS) then keep what they read of the file in huge pages.
  ::madvise(data, size, MADV_HUGEPAGE);
  if (options.mmap) {
    record_mapping(data, size, name);
  } else {
    read_fully(file.fd, static_cast<std::byte*>(data), size, name);
    ::mprotect(data, size, PROT_READ);
  }
  if (options.mlock && ::mlock(data, size) != 0) {
    refuse(
        name + " with --mlock",
        errno,
        "raise the limit of locked memory (ulimit -l), or leave --mlock out");
  }
  return out;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) {
    return;
  }
  if (file_backed_) {
    forget_mapping(data_);
  }
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void release_pages(const void* data, size_t size) {
  static const auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
  auto first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  uintptr_t last = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  for (MappingRecord* record = mapping_records; record != nullptr;
       record = record->next) {
    uintptr_t begin = std::max<uintptr_t>(record->begin, first);
    uintptr_t end = std::min<uintptr_t>(record->end, last);
    if (record->begin != 0 && record->path != nullptr && begin < end) {
      ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }
}

void install_truncation_handler() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace mlxcel
