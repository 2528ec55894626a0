//! YAML 1.2 to JSON, with the place of every value for later messages.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{json, Map, Value};
use serde_saphyr::Spanned;

use crate::Failure;

/// Bytes of a document; recipes are a few kilobytes.
const MAX_BYTES: usize = 4 << 20;

enum Node {
    Scalar(Value),
    /// A number that JSON has no word for.
    NotFinite(&'static str),
    List(Vec<Spanned<Node>>),
    Object(Vec<(String, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        macro_rules! scalars {
            ($($name:ident: $kind:ty),*) => {
                $(fn $name<E>(self, value: $kind) -> Result<Node, E> {
                    Ok(Node::Scalar(value.into()))
                })*
            };
        }
        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a YAML value")
            }
            scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64,
                     visit_str: &str, visit_string: String);
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(match (value.is_nan(), value.is_infinite()) {
                    (true, _) => Node::NotFinite("not a number"),
                    (_, true) => Node::NotFinite("infinite"),
                    _ => Node::Scalar(value.into()),
                })
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Scalar(Value::Null))
            }
            fn visit_none<E: serde::de::Error>(self) -> Result<Node, E> {
                self.visit_unit()
            }
            fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Node, D::Error> {
                Node::deserialize(d)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    items.push(entry);
                }
                Ok(Node::Object(items))
            }
        }
        deserializer.deserialize_any(NodeVisitor)
    }
}

/// What JSON cannot say, by JSON pointer.
#[derive(Default)]
struct Notes {
    positions: Map<String, Value>,
    not_finite: Map<String, Value>,
}

/// Moves the node's value out, noting where each part stood.
fn unfold(node: Spanned<Node>, pointer: &mut String, notes: &mut Notes) -> Value {
    let place = node.referenced;
    notes
        .positions
        .insert(pointer.clone(), json!([place.line(), place.column()]));
    let length = pointer.len();
    let value = match node.value {
        Node::Scalar(value) => value,
        Node::NotFinite(kind) => {
            notes.not_finite.insert(pointer.clone(), kind.into());
            Value::Null
        }
        Node::List(items) => {
            let mut list = Vec::with_capacity(items.len());
            for (i, item) in items.into_iter().enumerate() {
                pointer.push('/');
                pointer.push_str(&i.to_string());
                list.push(unfold(item, pointer, notes));
                pointer.truncate(length);
            }
            Value::Array(list)
        }
        Node::Object(items) => {
            let mut object = Map::new();
            for (key, item) in items {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                let value = unfold(item, pointer, notes);
                pointer.truncate(length);
                object.insert(key, value);
            }
            Value::Object(object)
        }
    };
    value
}

pub fn to_json(text: &str) -> Result<String, Failure> {
    if text.len() > MAX_BYTES {
        return Err(Failure::Error(format!(
            "{} bytes of YAML, more than the {MAX_BYTES} allowed",
            text.len()
        )));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! {
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_nodes: 100_000,
            max_depth: 64,
            max_documents: 1,
        },
    };
    let node: Spanned<Node> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|e| Failure::Error(e.to_string()))?;
    let mut notes = Notes::default();
    let value = unfold(node, &mut String::new(), &mut notes);
    let Notes {
        positions,
        not_finite,
    } = notes;
    Ok(json!({"value": value, "positions": positions, "not_finite": not_finite}).to_string())
}
