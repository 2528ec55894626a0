// Where the server listens, who may call and how long clients may take.
#include "cli/serve_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

namespace mlxcel::cli {

namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin < list.size()) {
    size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) {
      out.push_back(list.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return out;
}

}  // namespace

void declare_network_options(
    CLI::App& app, NetworkFlags& flags, server::ServerOptions& options) {
  constexpr const char* kGroup = "Network";
  http::Options& net = options.http;
  in(kGroup,
     app.add_option(
            "--host", net.host, "Address; one ending in .sock is a unix socket")
         ->capture_default_str());
  in(kGroup,
     app.add_option("--port", net.port, "Port; 0 for one that is free")
         ->check(CLI::Range(0, 65535))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
         "-a,--alias", options.alias, "The model's name on the API"));
  in(kGroup,
     app.add_option(
            "--api-key", flags.api_keys, "A key that clients need; repeatable")
         ->type_size(1)
         ->allow_extra_args(false)
         ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
  in(kGroup,
     app.add_option("--api-key-file", flags.api_key_file, "One key a line")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option("--api-prefix", net.prefix, "Put in front of every route"));
  in(kGroup,
     app.add_option(
         "--allowed-origins,--cors-origins",
         flags.origins,
         "Web pages that may call, comma separated, * for all; without it "
         "those of this machine"));
  in(kGroup,
     app.add_option(
            "--cors-headers",
            net.cors.headers,
            "Headers that those may send; * for what they ask for")
         ->capture_default_str());
  in(kGroup,
     app.add_option(
         "--cors-methods",
         net.cors.methods,
         "Methods that those may use; without it what each route takes"));
  in(kGroup,
     app.add_flag(
         "--cors-credentials",
         net.cors.credentials,
         "Let browsers send cookies and stored passwords with them"));
  in(kGroup,
     app.add_option(
            "--cors-max-age",
            net.cors.max_age,
            "Seconds for which a browser keeps these permissions")
         ->check(CLI::Range(0, 604800))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--ssl-cert-file", net.tls.cert_file, "Certificate chain, PEM")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option("--ssl-key-file", net.tls.key_file, "Its key, PEM")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option(
            "--timeout", flags.timeout, "Seconds that a request may take")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  in(kGroup,
     app.add_option("--threads-http", net.threads, "Threads for connections")
         ->check(CLI::Range(1, 256))
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--reuse-port",
         net.reuse_port,
         "Let other processes listen on the port"));
  in(kGroup,
     app.add_option(
            "--sse-ping-interval",
            flags.ping_interval,
            "Seconds between pings of a silent stream; 0 for none")
         ->check(CLI::Range(int64_t(0), int64_t(86400)))
         ->capture_default_str());
}

void finish_network(const NetworkFlags& flags, http::Options& net) {
  if (net.host.empty()) {
    throw UsageError(
        "--host is empty",
        "that would be every address of this machine",
        "give an address, 0.0.0.0 for all, or leave the option out");
  }
  for (const std::string& key : flags.api_keys) {
    for (const std::string& part : split(key)) {
      net.api_keys.push_back(part);
    }
  }
  if (net.api_keys.empty() && !flags.api_keys.empty()) {
    throw UsageError(
        "an --api-key is empty",
        "the server would be open to everyone",
        "give the key, or leave the option out");
  }
  while (net.prefix.ends_with('/')) {
    net.prefix.pop_back();
  }
  if (!net.prefix.empty() && !net.prefix.starts_with('/')) {
    net.prefix.insert(0, "/");
  }
  if (!flags.api_key_file.empty()) {
    for (std::string& key : http::read_key_file(flags.api_key_file)) {
      net.api_keys.push_back(std::move(key));
    }
  }
  if (net.tls.cert_file.empty() != net.tls.key_file.empty()) {
    throw UsageError(
        "--ssl-cert-file and --ssl-key-file belong together",
        "only one of them is given",
        "give both, or neither");
  }
  net.cors.origins = split(flags.origins);
  net.limits.request_time = std::chrono::seconds(flags.timeout);
  net.ping_interval = std::chrono::seconds(flags.ping_interval);
}

}  // namespace mlxcel::cli
