//! The C interface of `include/textkit.h`. Nothing unwinds through it: every
//! call runs behind `guard`.

mod constraint;
mod template;
mod tokenizer;
mod yaml;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use constraint::{Limits, Matcher, Vocabulary};
use template::Template;
use tokenizer::Tokenizer;

const OK: c_int = 0;
const ERROR: c_int = 1;
const RAISED: c_int = 2;
const PANIC: c_int = 3;

/// Why a call failed, as the caller sees it.
pub enum Failure {
    Error(String),
    Raised(String),
}

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Error(error.to_string())
    }
}

type Sink = extern "C" fn(*mut c_void, *const c_void, usize);

/// Runs `call`, hands its bytes or the message to the sink.
fn guard<T: AsRef<[u8]>>(
    sink: Sink,
    user: *mut c_void,
    call: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    let send = |bytes: &[u8]| sink(user, bytes.as_ptr().cast(), bytes.len());
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => {
            send(result.as_ref());
            OK
        }
        Ok(Err(Failure::Error(message))) => {
            send(message.as_bytes());
            ERROR
        }
        Ok(Err(Failure::Raised(message))) => {
            send(message.as_bytes());
            RAISED
        }
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown fault");
            send(message.as_bytes());
            // Dropping a payload other than panic!'s own could unwind again.
            if !panic.is::<String>() && !panic.is::<&str>() {
                std::mem::forget(panic);
            }
            PANIC
        }
    }
}

/// # Safety
/// `data` must hold `size` readable elements; null is allowed for none.
unsafe fn view<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if data.is_null() || size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes)
        .map_err(|e| Failure::Error(format!("not UTF-8 at byte {}", e.valid_up_to())))
}

/// Panics of the libraries become error codes; they must not print as well.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_new(
    json: *const c_char,
    size: usize,
    out: *mut *mut Tokenizer,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    silence_panics();
    guard(sink, user, || {
        let tokenizer = Tokenizer::from_json(text(view(json.cast(), size))?)?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(tokenizer))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_encode(
    tokenizer: *const Tokenizer,
    data: *const c_char,
    size: usize,
    flags: c_int,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        let text = String::from_utf8_lossy(view(data.cast(), size));
        let ids = (*tokenizer).encode(&text, flags & 1 != 0, flags & 2 != 0)?;
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_ne_bytes()));
        Ok(bytes)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_decode(
    tokenizer: *const Tokenizer,
    ids: *const i32,
    count: usize,
    skip_special: c_int,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        // Negative ids become large ones, which no vocabulary has.
        let ids = view(ids.cast::<u32>(), count);
        (*tokenizer).decode(ids, skip_special != 0)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_add_tokens(
    tokenizer: *mut Tokenizer,
    json: *const c_char,
    size: usize,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        (*tokenizer).add_tokens(text(view(json.cast(), size))?)?;
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_vocab_size(tokenizer: *const Tokenizer) -> i64 {
    (*tokenizer).vocab_size() as i64
}

#[no_mangle]
pub unsafe extern "C" fn tk_token_to_id(
    tokenizer: *const Tokenizer,
    token: *const c_char,
    size: usize,
) -> i64 {
    catch_unwind(AssertUnwindSafe(|| {
        let token = std::str::from_utf8(view(token.cast(), size)).ok()?;
        (*tokenizer).token_to_id(token)
    }))
    .ok()
    .flatten()
    .map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn tk_id_to_token(
    tokenizer: *const Tokenizer,
    id: i32,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        (*tokenizer)
            .id_to_token(id as u32)
            .ok_or_else(|| Failure::Error(format!("no token has the id {id}")))
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_is_special(tokenizer: *const Tokenizer, id: i32) -> c_int {
    catch_unwind(AssertUnwindSafe(|| (*tokenizer).is_special(id as u32)))
        .map_or(0, c_int::from)
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_new(
    source: *const c_char,
    size: usize,
    out: *mut *mut Template,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    silence_panics();
    guard(sink, user, || {
        let template = Template::new(text(view(source.cast(), size))?)?;
        *out = Box::into_raw(Box::new(template));
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_free(template: *mut Template) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_render(
    template: *const Template,
    context: *const c_char,
    size: usize,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        (*template).render(text(view(context.cast(), size))?)
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_yaml_to_json(
    data: *const c_char,
    size: usize,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    silence_panics();
    guard(sink, user, || yaml::to_json(text(view(data.cast(), size))?))
}

#[no_mangle]
pub unsafe extern "C" fn tk_vocabulary_new(
    tokenizer: *const Tokenizer,
    eos: *const i32,
    count: usize,
    out: *mut *mut Vocabulary,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        let vocabulary = Vocabulary::new(&*tokenizer, view(eos.cast::<u32>(), count))?;
        *out = Box::into_raw(Box::new(vocabulary));
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(vocabulary))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_matcher_new(
    vocabulary: *const Vocabulary,
    kind: *const c_char,
    source: *const c_char,
    size: usize,
    limits: *const Limits,
    out: *mut *mut Matcher,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        let kind = std::ffi::CStr::from_ptr(kind).to_str()?;
        let source = text(view(source.cast(), size))?;
        let matcher = Matcher::new(&*vocabulary, kind, source, *limits)?;
        *out = Box::into_raw(Box::new(matcher));
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_matcher_clone(
    matcher: *const Matcher,
    out: *mut *mut Matcher,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        *out = Box::into_raw(Box::new((*matcher).clone()));
        Ok([])
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(matcher))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_matcher_mask(
    matcher: *mut Matcher,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || (*matcher).mask())
}

#[no_mangle]
pub unsafe extern "C" fn tk_matcher_accept(
    matcher: *mut Matcher,
    id: i32,
    state: *mut c_int,
    sink: Sink,
    user: *mut c_void,
) -> c_int {
    guard(sink, user, || {
        if id >= 0 {
            (*matcher).accept(id as u32)?;
        }
        *state = (*matcher).state()?;
        Ok([])
    })
}
