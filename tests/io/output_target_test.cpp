// Files that are written beside their place and renamed: what must not be
// replaced, and what a replaced file keeps.
#include "io/output_target.h"

#include "core/error.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const fs::path& path) {
  try {
    output_target(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(OutputTarget, WhatIsNoFileIsRefusedAndStays) {
  testing::TemporaryFolder folder;
  fs::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(pipe), HasSubstr("a device, a pipe or a socket"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("cannot write /dev/null"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("it is a folder"));
  EXPECT_THROW(write_safetensors(pipe, {}, {}), Error);
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_THAT(folder.files(), ::testing::ElementsAre("pipe"));
}

TEST(OutputTarget, LinksLeadToWhatIsReplaced) {
  testing::TemporaryFolder folder;
  fs::path file = folder.write("file", "before");
  fs::path link = folder.path() / "link", second = folder.path() / "second";
  fs::create_symlink("file", link);
  fs::create_symlink(link, second);
  write_safetensors(second, {}, {});
  EXPECT_TRUE(fs::is_symlink(second));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_safetensors(file).tensors.size(), 0u);

  fs::path round = folder.path() / "round";
  fs::create_symlink("round", round);
  EXPECT_THAT(refusal(round), HasSubstr("links lead nowhere"));
}

TEST(OutputTarget, AReplacedFileKeepsItsPermissions) {
  testing::TemporaryFolder folder;
  fs::path file = folder.write("file", "before");
  fs::permissions(file, fs::perms(0640));
  write_safetensors(file, {}, {});
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0640));
}

}  // namespace
}  // namespace mlxcel
