// Rewrites the constructs of chat templates that the template engine lacks
// into ones that it has.
#pragma once

#include <string>
#include <string_view>

namespace mlxcel {

//   {% generation %} ... {% endgeneration %}  ->  {% if true %} ... {% endif %}
// (the pair marks what an assistant wrote and renders as it is), and
//   'text %s' % (a, b)  ->  'text %s'|format(a, b)
// Text outside tags, comments and raw blocks stay as they are.
std::string adapt_template(std::string_view source);

}  // namespace mlxcel
