//! Constrained decoding of the `llguidance` library over a tokenizer's bytes.

use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::ParserFactory;

use crate::tokenizer::Tokenizer;
use crate::Failure;

/// Compiling descends with the grammar; untouched pages of a stack cost nothing.
const COMPILE_STACK: usize = 256 << 20;

/// As `tk_limits` of the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    pub compile_steps: u64,
    pub mask_steps: u64,
    pub mask_items: u32,
    pub row_items: u32,
    pub lexer_states: u32,
    pub grammar_size: u32,
}

impl From<Limits> for ParserLimits {
    fn from(limits: Limits) -> Self {
        ParserLimits {
            max_items_in_row: limits.row_items as usize,
            initial_lexer_fuel: limits.compile_steps,
            step_lexer_fuel: limits.mask_steps,
            step_max_items: limits.mask_items as usize,
            max_lexer_states: limits.lexer_states as usize,
            max_grammar_size: limits.grammar_size as usize,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }
}

pub struct Vocabulary {
    factory: ParserFactory,
    size: usize,
}

impl Vocabulary {
    pub fn new(tokenizer: &Tokenizer, eos: &[u32]) -> Result<Self, Failure> {
        let mut words = tokenizer.token_bytes()?;
        let size = words.len();
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| (id as usize) < size).collect();
        // The library needs an end token; without one, an id past the last.
        words.push(Vec::new());
        let ends = if eos.is_empty() { vec![size as u32] } else { eos };
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)?;
        factory.quiet();
        Ok(Vocabulary { factory, size })
    }
}

/// The library's messages end in tags with a backtrace and the like.
fn failure(error: impl std::fmt::Display) -> Failure {
    let message = error.to_string();
    Failure::Error(message.split("\n<").next().unwrap_or_default().to_string())
}

#[derive(Clone)]
pub struct Matcher {
    inner: llguidance::Matcher,
    size: usize,
}

impl Matcher {
    pub fn new(
        vocabulary: &Vocabulary,
        kind: &str,
        source: &str,
        limits: Limits,
    ) -> Result<Self, Failure> {
        let grammar = match kind {
            "json_schema" => GrammarWithLexer::from_json_schema(serde_json::from_str(source)?),
            "lark" => GrammarWithLexer::from_lark(source.to_string()),
            "regex" => GrammarWithLexer::from_regex(source),
            _ => return Err(Failure::Error(format!("no grammar of kind {kind:?}"))),
        };
        let compile = || {
            let parser = vocabulary.factory.create_parser_from_init_ext(
                llguidance::api::GrammarInit::Serialized(TopLevelGrammar::from_grammar(grammar)),
                llguidance::Logger::new(0, 0),
                InferenceCapabilities::default(),
                limits.into(),
            );
            llguidance::Matcher::new(parser)
        };
        let inner = thread::scope(|scope| {
            let worker = thread::Builder::new()
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, compile)?;
            worker.join().map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Failure::Error(text.unwrap_or("unknown fault").to_string())
            })
        })?;
        match inner.get_error() {
            Some(error) => Err(failure(error)),
            None => Ok(Matcher { inner, size: vocabulary.size }),
        }
    }

    /// Little words of 32 tokens, lowest bit first.
    pub fn mask(&mut self) -> Result<Vec<u8>, Failure> {
        let mask = self.inner.compute_mask_or_eos().map_err(failure)?;
        let mut words = mask.as_slice()[..self.size.div_ceil(32)].to_vec();
        if self.size % 32 != 0 {
            *words.last_mut().unwrap() &= (1u32 << (self.size % 32)) - 1;
        }
        Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    pub fn accept(&mut self, id: u32) -> Result<(), Failure> {
        self.inner.consume_token(id).map_err(failure)
    }

    /// Bits of TK_MATCH_*.
    pub fn state(&mut self) -> Result<i32, Failure> {
        let stopped = self.inner.is_stopped();
        let accepting = if stopped {
            self.inner.stop_reason().is_ok()
        } else {
            self.inner.is_accepting().map_err(failure)?
        };
        Ok(i32::from(accepting) | i32::from(stopped) << 1)
    }
}
