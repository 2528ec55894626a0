#include "server/playground.h"

#include "core/error.h"

#include <openssl/evp.h>

#include <array>
#include <cstddef>

namespace mlxcel::server {

extern const unsigned char embedded_index_html[];
extern const std::size_t embedded_index_html_size;
extern const unsigned char embedded_style_css[];
extern const std::size_t embedded_style_css_size;
extern const unsigned char embedded_app_js[];
extern const std::size_t embedded_app_js_size;

namespace {

std::string_view text_of(const unsigned char* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

void replace(
    std::string& page, std::string_view mark, std::string_view content) {
  page.replace(page.find(mark), mark.size(), content);
}

// What a Content-Security-Policy calls an inline style or script.
std::string digest_source(std::string_view content) {
  std::array<unsigned char, 32> digest{};
  EVP_Digest(
      content.data(),
      content.size(),
      digest.data(),
      nullptr,
      EVP_sha256(),
      nullptr);
  std::array<unsigned char, 48> base64{};
  int size = EVP_EncodeBlock(base64.data(), digest.data(), int(digest.size()));
  return cat("'sha256-", text_of(base64.data(), size_t(size)), "'");
}

struct Page {
  std::string html;
  std::string policy;
};

Page make_page() {
  std::string_view style = text_of(embedded_style_css, embedded_style_css_size);
  std::string_view script = text_of(embedded_app_js, embedded_app_js_size);
  Page page;
  page.html = text_of(embedded_index_html, embedded_index_html_size);
  replace(page.html, "{{style}}", style);
  replace(page.html, "{{script}}", script);
  // One document that loads nothing: it works below any --api-prefix, and
  // text of a model cannot make it run or fetch anything.
  page.policy =
      "default-src 'none'; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "style-src " +
      digest_source(style) + "; script-src " + digest_source(script);
  return page;
}

}  // namespace

bool wants_page(std::string_view accept) {
  std::size_t html = accept.find("text/html");
  return html != std::string_view::npos &&
         html < accept.find("application/json");
}

void add_playground_route(http::Router& router, bool shown) {
  http::Route route;
  route.method = "GET";
  route.path = "/";
  route.access = http::Access::open;
  route.handler = http::immediate(
      [page = make_page(), shown](
          const http::Request& request, http::Response& response) {
        response.add_header("vary", "accept");
        if (!shown || !wants_page(request.header("accept"))) {
          response.send_json(200, {{"status", "ok"}});
          return;
        }
        response.add_header("content-security-policy", page.policy);
        response.add_header("x-content-type-options", "nosniff");
        response.add_header("referrer-policy", "no-referrer");
        response.add_header("cache-control", "no-cache");
        response.send(200, "text/html; charset=utf-8", page.html);
      });
  router.add(std::move(route));
}

}  // namespace mlxcel::server
