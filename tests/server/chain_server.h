// One server over the chain model for all tests of a program's suite: no test
// leaves anything behind.
#pragma once

#include "server/running_server.h"

#include <gtest/gtest.h>

namespace mlxcel::testing {

struct ChainServer : ::testing::Test {
  static void SetUpTestSuite() {
    folder = new TemporaryFolder();
    write_chain_model(folder->path("chain"));
    server = new RunningServer(folder->path("chain"), {"--alias", "chain"});
  }
  static void TearDownTestSuite() {
    delete server;
    delete folder;
    server = nullptr;
    folder = nullptr;
  }
  static inline TemporaryFolder* folder = nullptr;
  static inline RunningServer* server = nullptr;
};

}  // namespace mlxcel::testing
