//! Chat templates as transformers renders them: trim_blocks and lstrip_blocks,
//! loop controls, Python's methods and JSON, and a bound on work and memory.

use std::fmt::Write;

use minijinja::formatting::{format, FormatStyle};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, State, Value};

use crate::Failure;

/// Instructions and blocks of 64 bytes a rendering may use: about a second.
const FUEL: u64 = 20_000_000;
/// Nesting of values in tojson.
const MAX_DEPTH: usize = 200;
const NAME: &str = "chat_template";

pub struct Template {
    environment: Environment<'static>,
}

/// The source of errors that a template raises itself.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time through the C library's strftime, as Python does.
fn strftime_now(format: String) -> Result<String, Error> {
    let invalid = || Error::new(ErrorKind::InvalidOperation, "strftime_now: invalid format");
    if format.is_empty() {
        return Ok(format);
    }
    let format = std::ffi::CString::new(format).map_err(|_| invalid())?;
    let mut buffer = vec![0u8; 1024 + 64 * format.as_bytes().len()];
    let size = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    buffer.truncate(size);
    String::from_utf8(buffer).map_err(|_| invalid())
}

/// How json.dumps lays out its text.
struct JsonStyle {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

impl JsonStyle {
    fn string(&self, text: &str, out: &mut String) -> Result<(), Error> {
        let quoted = serde_json::to_string(text)
            .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
        if !self.ensure_ascii {
            out.push_str(&quoted);
            return Ok(());
        }
        let mut units = [0u16; 2];
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
        Ok(())
    }

    fn line(&self, level: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    }

    /// A scalar's JSON text; None for anything else.
    fn scalar(value: &Value) -> Option<String> {
        match value.kind() {
            ValueKind::None => Some("null".into()),
            ValueKind::Bool => Some(if value.is_true() { "true" } else { "false" }.into()),
            ValueKind::Number => Some(match python_number(value).ok()?.as_str() {
                "nan" => "NaN".into(),
                "inf" => "Infinity".into(),
                "-inf" => "-Infinity".into(),
                number => number.into(),
            }),
            _ => None,
        }
    }

    fn write(
        &self,
        state: &State,
        value: &Value,
        level: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        state.consume_fuel(1)?;
        if level > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deeply"));
        }
        if let Some(text) = Self::scalar(value) {
            out.push_str(&text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut empty = true;
                out.push('[');
                for item in value.try_iter()? {
                    if !std::mem::take(&mut empty) {
                        out.push_str(&self.item_separator);
                    }
                    self.line(level + 1, out);
                    self.write(state, &item, level + 1, out)?;
                }
                if !empty {
                    self.line(level, out);
                }
                out.push(']');
                Ok(())
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    if i > 0 {
                        out.push_str(&self.item_separator);
                    }
                    self.line(level + 1, out);
                    match (key.as_str(), Self::scalar(key)) {
                        (Some(text), _) => self.string(text, out)?,
                        (None, Some(text)) => self.string(&text, out)?,
                        _ => {
                            return Err(Error::new(
                                ErrorKind::BadSerialization,
                                "tojson: a key is no string",
                            ))
                        }
                    }
                    out.push_str(&self.key_separator);
                    self.write(state, &value.get_item(key)?, level + 1, out)?;
                }
                if !keys.is_empty() {
                    self.line(level, out);
                }
                out.push('}');
                Ok(())
            }
            kind => Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson: {kind} is not JSON serializable"),
            )),
        }
    }
}

fn tojson(state: &State, value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        Some(value) if value.is_none() || value.is_undefined() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
        None => None,
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are two strings",
            ))
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    let mut out = String::new();
    style.write(state, value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Floats print as Python's repr, 1e-07 and 1e+16.
fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

fn python_number(value: &Value) -> Result<String, Error> {
    if is_float(value) {
        format(FormatStyle::StrFormat, "{}", std::slice::from_ref(value))
    } else {
        Ok(value.to_string())
    }
}

/// As Python's: None is none, which the engine takes for an empty list. What is
/// undefined is.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja's test asks for a length and indexing, which strings and maps have.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

fn describe(error: &Error) -> Failure {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return Failure::Raised(message.clone());
        }
        cause = current.source();
    }
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        let _ = write!(message, ": {detail}");
    }
    if let Some(line) = error.line() {
        let _ = write!(message, " (line {line} of the template)");
    }
    Failure::Error(message)
}

impl Template {
    pub fn new(source: &str) -> Result<Self, Failure> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| describe(&e))?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_test("sequence", is_sequence);
        environment.add_test("iterable", is_iterable);
        environment.set_formatter(|out, state, value| {
            if is_float(value) {
                Ok(out.write_str(&python_number(value)?)?)
            } else {
                escape_formatter(out, state, value)
            }
        });
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(|e| describe(&e))?;
        Ok(Template { environment })
    }

    pub fn render(&self, context: &str) -> Result<String, Failure> {
        let context: serde_json::Value = serde_json::from_str(context)?;
        let template = self.environment.get_template(NAME).map_err(|e| describe(&e))?;
        template
            .render(Value::from(minijinja::value::Serde(&context)))
            .map_err(|e| describe(&e))
    }
}
