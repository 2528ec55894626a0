#include "text/gbnf.h"

#include "core/error.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

namespace mlxcel {

namespace {

using Kind = GbnfNode::Kind;

constexpr size_t kMaxRules = 1000;
constexpr size_t kMaxStates = 4000;      // of one terminal's automaton
constexpr int kMaxDescent = 1000;        // of rules within a terminal
constexpr int64_t kMaxWork = 4'000'000;  // steps over pairs of automata

// A nondeterministic automaton over characters.
struct Automaton {
  struct State {
    std::vector<int> jumps;  // without a character
    std::vector<std::pair<const CharSet*, int>> edges;
  };
  std::vector<State> states;
  int begin = 0, end = 0;
};

// One terminal: consecutive parts without recursion.
struct Unit {
  std::vector<int> nodes;
  CharSet follow;  // what may come behind it, everywhere it is used
  std::optional<Automaton> automaton;
};

class Translator {
 public:
  explicit Translator(GbnfGrammar grammar) : grammar_(std::move(grammar)) {
    if (grammar_.rules.size() > kMaxRules) {
      throw TextError(
          "the grammar is too large",
          cat("it has ", grammar_.rules.size(), " rules, at most ", kMaxRules),
          "give a smaller one");
    }
    regular_.assign(grammar_.rules.size(), false);
    find_regular();
    find_first();
    find_follow();
  }

  std::string run() {
    std::string text = emit();
    while (unfold()) {
      text = emit();
    }
    return text;
  }

 private:
  const GbnfNode& node(int index) const {
    return grammar_.nodes[size_t(index)];
  }

  // Rules that neither recur nor hold tokens, from the leaves up.
  void find_regular() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < grammar_.rules.size(); ++i) {
        if (!regular_[i] && is_regular(grammar_.rules[i].body)) {
          regular_[i] = changed = true;
        }
      }
    }
  }

  bool is_regular(int index) const {
    const GbnfNode& n = node(index);
    if (n.kind == Kind::rule) {
      return regular_[size_t(n.rule)];
    }
    return n.kind != Kind::token &&
           std::all_of(n.children.begin(), n.children.end(), [&](int child) {
             return is_regular(child);
           });
  }

  void find_first() {
    first_.resize(grammar_.rules.size());
    nullable_.assign(grammar_.rules.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < grammar_.rules.size(); ++i) {
        CharSet set = first(grammar_.rules[i].body);
        bool empty = nullable(grammar_.rules[i].body);
        if (set != first_[i] || empty != nullable_[i]) {
          first_[i] = std::move(set);
          nullable_[i] = empty;
          changed = true;
        }
      }
    }
  }

  bool nullable(int index) const {
    const GbnfNode& n = node(index);
    auto child_is = [&](int child) { return nullable(child); };
    switch (n.kind) {
      case Kind::chars:
      case Kind::token:
        return false;
      case Kind::sequence:
        return std::all_of(n.children.begin(), n.children.end(), child_is);
      case Kind::choice:
        return std::any_of(n.children.begin(), n.children.end(), child_is);
      case Kind::repeat:
        return n.min == 0 || nullable(n.children[0]);
      case Kind::rule:
        return nullable_[size_t(n.rule)];
    }
    return false;
  }

  CharSet first(int index) const {
    const GbnfNode& n = node(index);
    if (n.kind == Kind::chars) {
      return n.set;
    }
    if (n.kind == Kind::rule) {
      return first_[size_t(n.rule)];
    }
    CharSet out;
    if (n.kind == Kind::repeat && n.max == 0) {
      return out;
    }
    for (int child : n.children) {
      out = unite(out, first(child));
      if (n.kind == Kind::sequence && !nullable(child)) {
        break;
      }
    }
    return out;
  }

  void find_follow() {
    follow_.resize(grammar_.nodes.size());
    rule_follow_.resize(grammar_.rules.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < grammar_.rules.size(); ++i) {
        spread(grammar_.rules[i].body, rule_follow_[i], &changed);
      }
    }
  }

  void spread(int index, const CharSet& follow, bool* changed) {
    follow_[size_t(index)] = follow;
    const GbnfNode& n = node(index);
    if (n.kind == Kind::rule) {
      CharSet& known = rule_follow_[size_t(n.rule)];
      CharSet both = unite(known, follow);
      if (both != known) {
        known = std::move(both);
        *changed = true;
      }
    } else if (n.kind == Kind::repeat) {
      CharSet inner = n.max == 1 ? follow : unite(follow, first(n.children[0]));
      spread(n.children[0], inner, changed);
    } else {
      CharSet behind = follow;
      for (size_t i = n.children.size(); i-- > 0;) {
        int child = n.children[i];
        spread(child, n.kind == Kind::choice ? follow : behind, changed);
        behind = nullable(child) ? unite(behind, first(child)) : first(child);
      }
    }
  }

  // Lark's rules and terminals for what is folded now.
  std::string emit() {
    units_.clear();
    unit_names_.clear();
    rules_.clear();
    std::string text = "start: " + reference(grammar_.root) + "\n";
    for (size_t i = 0; i < rules_.size(); ++i) {
      int body = grammar_.rules[size_t(rules_[i])].body;
      text += cat("r", rules_[i], ": ", body_expression(body), "\n");
    }
    std::vector<int> terminals;
    for (size_t i = 0; i < units_.size(); ++i) {
      for (int n : units_[i].nodes) {
        collect(n, &terminals);
      }
      std::string inner = cat("(", unit_text(units_[i].nodes), ")");
      bool empty = units_nullable(units_[i].nodes);
      text += cat("T", i, ": ", inner, empty ? " & /(?s:.+)/" : "", "\n");
    }
    for (size_t i = 0; i < terminals.size(); ++i) {
      int body = grammar_.rules[size_t(terminals[i])].body;
      collect(body, &terminals);
      text += cat("R", terminals[i], ": ", terminal(body), "\n");
    }
    return text;
  }

  // The rules that a terminal is made of.
  void collect(int index, std::vector<int>* rules) const {
    const GbnfNode& n = node(index);
    if (n.kind == Kind::rule &&
        std::find(rules->begin(), rules->end(), n.rule) == rules->end()) {
      rules->push_back(n.rule);
    }
    for (int child : n.children) {
      collect(child, rules);
    }
  }

  bool folded(const std::vector<int>& nodes) const {
    return std::all_of(
               nodes.begin(),
               nodes.end(),
               [&](int n) { return is_regular(n); }) &&
           !unfolded_.contains(unit_text(nodes));
  }

  // A rule by its name, or its only terminal.
  std::string reference(int rule) {
    int body = grammar_.rules[size_t(rule)].body;
    if (folded({body})) {
      return unit({body});
    }
    if (std::find(rules_.begin(), rules_.end(), rule) == rules_.end()) {
      rules_.push_back(rule);
    }
    return cat("r", rule);
  }

  std::string body_expression(int index) {
    if (folded({index})) {
      return unit({index});
    }
    const GbnfNode& n = node(index);
    switch (n.kind) {
      case Kind::chars:
        return unit({index});
      case Kind::token:
        return n.token;
      case Kind::rule:
        return reference(n.rule);
      case Kind::repeat:
        return cat(
            "(", body_expression(n.children[0]), ")", times(n.min, n.max));
      case Kind::choice: {
        std::string out = "(";
        for (size_t i = 0; i < n.children.size(); ++i) {
          out += cat(i > 0 ? " | " : "", body_expression(n.children[i]));
        }
        return out + ")";
      }
      case Kind::sequence:
        break;
    }
    std::string out = n.children.empty() ? "\"\"" : "";
    for (size_t i = 0; i < n.children.size();) {
      std::vector<int> run;
      while (i < n.children.size() && folded({n.children[i]})) {
        run.push_back(n.children[i++]);
      }
      if (run.empty()) {
        out += cat(" ", body_expression(n.children[i++]));
      } else if (folded(run)) {
        out += cat(" ", unit(run));
      } else {
        for (int child : run) {
          out += cat(" ", unit({child}));
        }
      }
    }
    return out;
  }

  bool units_nullable(const std::vector<int>& nodes) const {
    return std::all_of(
        nodes.begin(), nodes.end(), [&](int n) { return nullable(n); });
  }

  std::string unit(const std::vector<int>& nodes) {
    bool empty = units_nullable(nodes);
    if (empty && std::all_of(nodes.begin(), nodes.end(), [&](int n) {
          return first(n).empty();
        })) {
      return "\"\"";
    }
    auto [found, fresh] =
        unit_names_.try_emplace(unit_text(nodes), units_.size());
    if (fresh) {
      units_.push_back({nodes, {}, {}});
    }
    Unit& known = units_[found->second];
    known.follow = unite(known.follow, follow_[size_t(nodes.back())]);
    return cat("T", found->second, empty ? "?" : "");
  }

  static std::string times(int min, int max) {
    if (max < 0) {
      return min == 0 ? "*" : min == 1 ? "+" : cat("{", min, ",}");
    }
    return min == 0 && max == 1 ? "?" : cat("{", min, ",", max, "}");
  }

  std::string unit_text(const std::vector<int>& nodes) const {
    std::string out;
    for (int n : nodes) {
      out += cat(out.empty() ? "" : " ", terminal(n));
    }
    return out;
  }

  std::string terminal(int index) const {
    const GbnfNode& n = node(index);
    std::string out;
    switch (n.kind) {
      case Kind::chars:
        return char_pattern(n.set);
      case Kind::sequence:
        for (int child : n.children) {
          out += cat(out.empty() ? "" : " ", terminal(child));
        }
        return out.empty() ? "\"\"" : out;
      case Kind::choice:
        for (int child : n.children) {
          out += cat(out.empty() ? "(" : " | ", terminal(child));
        }
        return out + ")";
      case Kind::repeat:
        return cat("(", terminal(n.children[0]), ")", times(n.min, n.max));
      case Kind::rule:
        return cat("R", n.rule);
      case Kind::token:
        break;
    }
    return out;
  }

  static std::string char_pattern(const CharSet& set) {
    std::string out = "/[";
    for (const auto& [low, high] : set) {
      out += fmt::format("\\x{{{:X}}}", low);
      if (high != low) {
        out += fmt::format("-\\x{{{:X}}}", high);
      }
    }
    return out + "]/";
  }

  // Terminals that could go on where a shorter match should have ended: the
  // lexer would never take the shorter one. True when one was taken apart.
  bool unfold() {
    std::set<std::vector<int>> apart;
    if (units_.size() == 1 && units_[0].follow.empty()) {
      return false;
    }
    for (Unit& unit : units_) {
      unit.automaton = build(unit.nodes);
      if (!unit.automaton) {
        apart.insert(unit.nodes);
      }
    }
    for (const Unit& shorter : units_) {
      for (const Unit& longer : units_) {
        if (shorter.automaton && longer.automaton && divisible(longer) &&
            !apart.contains(longer.nodes) && goes_on(shorter, longer)) {
          apart.insert(longer.nodes);
        }
      }
    }
    for (const std::vector<int>& nodes : apart) {
      unfolded_.insert(unit_text(nodes));
      if (const GbnfNode& n = node(nodes[0]);
          nodes.size() == 1 && n.kind == Kind::rule) {
        unfolded_.insert(unit_text({grammar_.rules[size_t(n.rule)].body}));
      }
    }
    return !apart.empty();
  }

  bool divisible(const Unit& unit) const {
    return unit.nodes.size() > 1 || node(unit.nodes[0]).kind != Kind::chars;
  }

  // Nothing when it has too many states.
  std::optional<Automaton> build(const std::vector<int>& nodes) const {
    Automaton out;
    out.states.resize(1);
    int at = 0;
    for (int n : nodes) {
      at = append(&out, n, at, 0);
      if (at < 0) {
        return std::nullopt;
      }
    }
    out.end = at;
    return out;
  }

  int new_state(Automaton* out) const {
    out->states.emplace_back();
    return int(out->states.size()) - 1;
  }

  // Adds what the node matches behind `from`; the state behind it, or -1.
  int append(Automaton* out, int index, int from, int depth) const {
    const GbnfNode& n = node(index);
    if (out->states.size() > kMaxStates || depth > kMaxDescent) {
      return -1;
    }
    auto state = [&](int i) -> Automaton::State& {
      return out->states[size_t(i)];
    };
    switch (n.kind) {
      case Kind::chars: {
        int to = new_state(out);
        state(from).edges.emplace_back(&n.set, to);
        return to;
      }
      case Kind::sequence:
        for (int child : n.children) {
          from = append(out, child, from, depth + 1);
          if (from < 0) {
            return -1;
          }
        }
        return from;
      case Kind::choice: {
        int to = new_state(out);
        for (int child : n.children) {
          int begin = new_state(out);
          state(from).jumps.push_back(begin);
          int end = append(out, child, begin, depth + 1);
          if (end < 0) {
            return -1;
          }
          state(end).jumps.push_back(to);
        }
        return to;
      }
      case Kind::repeat: {
        int to = new_state(out);
        int copies = n.max < 0 ? std::max(n.min, 1) : n.max;
        for (int i = 0; i < copies; ++i) {
          if (i >= n.min) {
            state(from).jumps.push_back(to);
          }
          int begin = new_state(out);
          state(from).jumps.push_back(begin);
          int end = append(out, n.children[0], begin, depth + 1);
          if (end < 0) {
            return -1;
          }
          if (n.max < 0 && i + 1 == copies) {
            state(end).jumps.push_back(begin);
          }
          from = end;
        }
        state(from).jumps.push_back(to);
        return to;
      }
      case Kind::rule:
        return append(
            out, grammar_.rules[size_t(n.rule)].body, from, depth + 1);
      case Kind::token:
        break;
    }
    return -1;
  }

  // Is there a text that `shorter` matches, behind which a character may come
  // with which `longer` goes on as well?
  bool goes_on(const Unit& shorter, const Unit& longer) {
    const Automaton &a = *shorter.automaton, &b = *longer.automaton;
    struct Place {
      int x, y;   // states of the two
      bool read;  // a character came before
      auto operator<=>(const Place&) const = default;
    };
    std::set<Place> seen;
    std::deque<Place> todo;
    auto reach = [&](Place place) {
      if (seen.insert(place).second) {
        todo.push_back(place);
      }
    };
    reach({a.begin, b.begin, false});
    while (!todo.empty()) {
      Place at = todo.front();
      todo.pop_front();
      const auto& from = a.states[size_t(at.x)];
      const auto& other = b.states[size_t(at.y)];
      for (int to : from.jumps) {
        reach({to, at.y, at.read});
      }
      for (int to : other.jumps) {
        reach({at.x, to, at.read});
      }
      work_ += 1 + int64_t(from.edges.size() * other.edges.size());
      if (work_ > kMaxWork) {
        return true;  // not known: by the character is always right
      }
      for (const auto& [set, to] : other.edges) {
        if (at.x == a.end && at.read && intersects(*set, shorter.follow)) {
          return true;
        }
        for (const auto& [own, next] : from.edges) {
          if (intersects(*own, *set)) {
            reach({next, to, true});
          }
        }
      }
    }
    return false;
  }

  GbnfGrammar grammar_;
  std::vector<bool> regular_, nullable_;
  std::vector<CharSet> first_, rule_follow_, follow_;
  std::set<std::string> unfolded_;  // by unit_text
  int64_t work_ = 0;

  std::vector<Unit> units_;
  std::map<std::string, size_t> unit_names_;
  std::vector<int> rules_;  // to be written
};

}  // namespace

std::string gbnf_to_lark(std::string_view text) {
  return Translator(parse_gbnf(text)).run();
}

}  // namespace mlxcel
