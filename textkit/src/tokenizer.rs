//! Tokenizers of the `tokenizers` library, read faster than its own reader
//! does: that one goes through a tree of JSON values, twice for the model.

use std::borrow::Cow;
use std::sync::RwLock;

use ahash::AHashMap;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerBuilder, TokenizerImpl,
};

use crate::Failure;

type Inner = TokenizerImpl<
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

pub struct Tokenizer {
    // Written to only while special tokens count as plain text.
    inner: RwLock<Inner>,
    vocab_size: usize,
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow, default)]
    added_tokens: Option<&'a RawValue>,
    #[serde(default)]
    normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    post_processor: Option<PostProcessorWrapper>,
    #[serde(default)]
    decoder: Option<DecoderWrapper>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    normalized: Option<bool>,
}

impl From<Added> for AddedToken {
    fn from(token: Added) -> Self {
        AddedToken::from(token.content, token.special)
            .normalized(token.normalized.unwrap_or(!token.special))
            .lstrip(token.lstrip)
            .rstrip(token.rstrip)
            .single_word(token.single_word)
    }
}

/// A BPE model's fields; dropout is for training and left out.
#[derive(Deserialize)]
struct BpeFile<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<Cow<'a, str>>,
    vocab: Vocab,
    merges: Merges,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
}

struct Vocab(AHashMap<String, u32>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = Vocab;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object of tokens and ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                // Through a list, so that the table is made in its final size.
                let mut list: Vec<(String, u32)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    list.push(entry);
                }
                Ok(Vocab(list.into_iter().collect()))
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

struct Merges(Vec<(String, String)>);

/// `["a", "b"]`, or `"a b"` in older files.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a merge: two tokens in a list or separated by a space")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((a, b)) if !b.contains(' ') => Ok(Merge(a.into(), b.into())),
                    _ => Err(E::custom(format!("merge {text:?} does not have two tokens"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                match (seq.next_element()?, seq.next_element()?) {
                    (Some(a), Some(b)) if seq.next_element::<String>()?.is_none() => {
                        Ok(Merge(a, b))
                    }
                    _ => Err(de::Error::custom("a merge does not have two tokens")),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SeqVisitor;
        impl<'de> Visitor<'de> for SeqVisitor {
            type Value = Merges;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
                let mut merges = Vec::new();
                while let Some(Merge(a, b)) = seq.next_element()? {
                    merges.push((a, b));
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(SeqVisitor)
    }
}

fn read_model(json: &str) -> Result<ModelWrapper, Failure> {
    match serde_json::from_str::<BpeFile>(json) {
        Ok(file) if file.kind.as_deref() == Some("BPE") => build_bpe(file),
        // Another type, or an old file that does not name it.
        Ok(_) => Ok(serde_json::from_str(json)?),
        Err(error) => serde_json::from_str(json).map_err(|_| error.into()),
    }
}

fn build_bpe(file: BpeFile) -> Result<ModelWrapper, Failure> {
    let prefix = file.continuing_subword_prefix.unwrap_or_default();
    // The library cuts this prefix off the second part unseen.
    if let Some((_, b)) = file.merges.0.iter().find(|(_, b)| !b.starts_with(&prefix)) {
        return Err(Failure::Error(format!(
            "merge part {b:?} does not start with continuing_subword_prefix {prefix:?}"
        )));
    }
    let mut builder = BPE::builder()
        .vocab_and_merges(file.vocab.0, file.merges.0)
        .fuse_unk(file.fuse_unk.unwrap_or(false))
        .byte_fallback(file.byte_fallback.unwrap_or(false))
        .ignore_merges(file.ignore_merges.unwrap_or(false));
    if let Some(token) = file.unk_token {
        builder = builder.unk_token(token);
    }
    if !prefix.is_empty() {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = file.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    Ok(ModelWrapper::BPE(builder.build()?))
}

fn read_added(json: &str) -> Result<Vec<AddedToken>, Failure> {
    let tokens: Vec<Added> = serde_json::from_str(json)?;
    Ok(tokens.into_iter().map(Into::into).collect())
}

impl Tokenizer {
    pub fn from_json(json: &str) -> Result<Self, Failure> {
        let file: File = serde_json::from_str(json)?;
        let mut inner: Inner = TokenizerBuilder::new()
            .with_model(read_model(file.model.get())?)
            .with_normalizer(file.normalizer)
            .with_pre_tokenizer(file.pre_tokenizer)
            .with_post_processor(file.post_processor)
            .with_decoder(file.decoder)
            .build()?;
        if let Some(tokens) = file.added_tokens {
            inner.add_tokens(read_added(tokens.get())?)?;
        }
        let mut tokenizer = Tokenizer { inner: RwLock::new(inner), vocab_size: 0 };
        tokenizer.count();
        Ok(tokenizer)
    }

    fn count(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(|e| e.into_inner());
        self.vocab_size = inner.get_vocab_size(true);
        // Ids may have holes: one more than the highest is wanted.
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        let highest = added.keys().max().map_or(0, |&id| id as usize + 1);
        self.vocab_size = self.vocab_size.max(highest);
    }

    pub fn add_tokens(&mut self, json: &str) -> Result<(), Failure> {
        let tokens = read_added(json)?;
        let inner = self.inner.get_mut().unwrap_or_else(|e| e.into_inner());
        inner.add_tokens(tokens)?;
        self.count();
        Ok(())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(|e| e.into_inner())
    }

    pub fn encode(&self, text: &str, special: bool, plain: bool) -> Result<Vec<u32>, Failure> {
        let encoding = if plain {
            let mut inner = self.inner.write().unwrap_or_else(|e| e.into_inner());
            inner.set_encode_special_tokens(true);
            let result = inner.encode_fast(text, special);
            inner.set_encode_special_tokens(false);
            result?
        } else {
            let inner = self.read();
            if inner.get_encode_special_tokens() {
                // A fault during a plain encode left the flag behind.
                drop(inner);
                let mut inner = self.inner.write().unwrap_or_else(|e| e.into_inner());
                inner.set_encode_special_tokens(false);
                inner.encode_fast(text, special)?
            } else {
                inner.encode_fast(text, special)?
            }
        };
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Failure> {
        Ok(self.read().decode(ids, skip_special)?)
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.read().token_to_id(token)
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.read().id_to_token(id)
    }

    pub fn is_special(&self, id: u32) -> bool {
        let inner = self.read();
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// What each id stands for in a text, by the tokenizer's decoder; special
    /// tokens as 0xff and their name, which no text matches. "" for holes.
    pub fn token_bytes(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let inner = self.read();
        let decoder = serde_json::to_value(inner.get_decoder())?;
        let steps = match decoder["decoders"].as_array() {
            Some(list) => list.clone(),
            None => vec![decoder],
        };
        for step in &steps {
            let name = step["type"].as_str().unwrap_or("");
            if matches!(name, "WordPiece" | "BPEDecoder" | "CTC") {
                return Err(Failure::Error(format!(
                    "a tokenizer with the decoder {name} has no bytes for single tokens"
                )));
            }
        }
        let added = inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut words = vec![Vec::new(); self.vocab_size];
        for (id, word) in words.iter_mut().enumerate() {
            let Some(text) = inner.id_to_token(id as u32) else { continue };
            match added.get(&(id as u32)) {
                Some(token) if token.special => {
                    word.push(0xff);
                    word.extend_from_slice(text.as_bytes());
                }
                _ => *word = bytes_of_token(text, &steps),
            }
        }
        Ok(words)
    }
}

fn bytes_of_token(mut text: String, steps: &[serde_json::Value]) -> Vec<u8> {
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => {
                let bytes: Option<Vec<u8>> = text.chars().map(byte_level).collect();
                return bytes.unwrap_or_else(|| text.into_bytes());
            }
            Some("ByteFallback") => {
                let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                if let Some(Ok(byte)) = hex.map(|hex| u8::from_str_radix(hex, 16)) {
                    return vec![byte];
                }
            }
            Some("Replace") => {
                if let (Some(from), Some(to)) =
                    (step["pattern"]["String"].as_str(), step["content"].as_str())
                {
                    text = text.replace(from, to);
                }
            }
            Some("Metaspace") => {
                text = text.replace(step["replacement"].as_str().unwrap_or("\u{2581}"), " ");
            }
            _ => {} // Fuse joins tokens, Strip cuts at a text's ends
        }
    }
    text.into_bytes()
}

/// The byte of a character of the byte-level alphabet: printable Latin-1 stands
/// for itself, the others are 256 and up in order.
fn byte_level(c: char) -> Option<u8> {
    let plain = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = c as u32;
    if code < 256 {
        return plain(code).then_some(code as u8);
    }
    (0..256).filter(|&b| !plain(b)).nth(code as usize - 256).map(|b| b as u8)
}
