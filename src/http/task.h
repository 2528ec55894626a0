// Coroutines of request handlers: Task<T> runs when awaited, on the thread of
// the one who awaits. Exceptions pass to the awaiter.
#pragma once

#include <coroutine>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

namespace mlxcel::http {

namespace detail {

struct PromiseBase {
  // An awaiter resumes the child inside its own await_suspend, so a child that
  // never waits costs no stack, whatever the compiler makes of tail calls.
  struct Final {
    bool await_ready() noexcept {
      return false;
    }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(
        std::coroutine_handle<Promise> handle) noexcept {
      PromiseBase& promise = handle.promise();
      promise.done = true;
      return promise.parent ? promise.parent : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };

  std::suspend_always initial_suspend() noexcept {
    return {};
  }
  Final final_suspend() noexcept {
    return {};
  }
  void unhandled_exception() noexcept {
    error = std::current_exception();
  }

  std::coroutine_handle<> parent;  // set once the parent has suspended
  std::exception_ptr error;
  bool done = false;
};

template <typename T>
struct Promise;

}  // namespace detail

template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;

  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) {
      handle_.destroy();
    }
  }

  bool await_ready() noexcept {
    return false;
  }
  bool await_suspend(std::coroutine_handle<> parent) {
    handle_.resume();
    if (handle_.promise().done) {
      return false;
    }
    handle_.promise().parent = parent;
    return true;
  }
  T await_resume() {
    return handle_.promise().take();
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {

template <typename T>
struct Promise : PromiseBase {
  Task<T> get_return_object() {
    return Task<T>(std::coroutine_handle<Promise>::from_promise(*this));
  }
  void return_value(T result) {
    value = std::move(result);
  }
  T take() {
    if (error) {
      std::rethrow_exception(error);
    }
    return std::move(*value);
  }

  std::optional<T> value;
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() {
    return Task<void>(std::coroutine_handle<Promise>::from_promise(*this));
  }
  void return_void() {}
  void take() {
    if (error) {
      std::rethrow_exception(error);
    }
  }
};

// Owns itself: destroyed when it ends.
struct Detached {
  // The language asks for this name.
  struct promise_type {  // NOLINT(readability-identifier-naming)
    Detached get_return_object() {
      return {};
    }
    std::suspend_never initial_suspend() noexcept {
      return {};
    }
    std::suspend_never final_suspend() noexcept {
      return {};
    }
    void return_void() {}
    void unhandled_exception() {
      std::terminate();
    }
  };
};

}  // namespace detail

// Runs a task from plain code. `done` gets what the task threw, or null; it is
// called after the task's own frame is gone.
inline detail::Detached start(
    Task<> task, std::function<void(std::exception_ptr)> done) {
  std::exception_ptr error;
  {
    Task<> running = std::move(task);
    try {
      co_await running;
    } catch (...) {
      error = std::current_exception();
    }
  }
  done(error);
}

}  // namespace mlxcel::http
