/* Text functions behind a C interface: tokenizers, chat templates, YAML and
 * constrained decoding.
 *
 * Results are handed to a sink, which copies them; it must not throw. A call
 * that returns TK_OK gives the sink its result, any other code gives it a
 * message in UTF-8. Text goes in as bytes with a size and needs no final zero.
 * A tokenizer or template may be used by several threads at once.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*tk_sink)(void* user, const void* data, size_t size);

enum {
  TK_OK = 0,
  TK_ERROR = 1,
  TK_RAISED = 2, /* the template called raise_exception; its own message */
  TK_PANIC = 3   /* a fault inside the library; the object stays usable */
};

typedef struct tk_tokenizer tk_tokenizer;
typedef struct tk_template tk_template;

/* From the text of a tokenizer.json. */
int tk_tokenizer_new(
    const char* json,
    size_t size,
    tk_tokenizer** out,
    tk_sink sink,
    void* user);
void tk_tokenizer_free(tk_tokenizer* tokenizer);

enum {
  TK_ADD_SPECIAL = 1,  /* the post-processor's tokens */
  TK_PLAIN_SPECIAL = 2 /* special tokens in the text are plain text */
};
/* Result: int32 ids. Ill-formed UTF-8 becomes U+FFFD, one for each maximal
 * ill-formed part. */
int tk_encode(
    const tk_tokenizer* tokenizer,
    const char* text,
    size_t size,
    int flags,
    tk_sink sink,
    void* user);
/* Result: UTF-8. Ids outside the vocabulary decode to nothing. */
int tk_decode(
    const tk_tokenizer* tokenizer,
    const int32_t* ids,
    size_t count,
    int skip_special,
    tk_sink sink,
    void* user);

/* Adds tokens given as a JSON array of {"content", "special", "lstrip",
 * "rstrip", "normalized", "single_word"}; those known already are updated. */
int tk_add_tokens(
    tk_tokenizer* tokenizer,
    const char* json,
    size_t size,
    tk_sink sink,
    void* user);

/* One more than the highest id. */
int64_t tk_vocab_size(const tk_tokenizer* tokenizer);
/* -1 when the token is unknown. */
int64_t tk_token_to_id(
    const tk_tokenizer* tokenizer, const char* token, size_t size);
int tk_id_to_token(
    const tk_tokenizer* tokenizer, int32_t id, tk_sink sink, void* user);
int tk_is_special(const tk_tokenizer* tokenizer, int32_t id);

/* A chat template in Jinja. */
int tk_template_new(
    const char* source,
    size_t size,
    tk_template** out,
    tk_sink sink,
    void* user);
void tk_template_free(tk_template* chat_template);
/* `context` is a JSON object; its order is kept. Result: the text. */
int tk_template_render(
    const tk_template* chat_template,
    const char* context,
    size_t size,
    tk_sink sink,
    void* user);

/* One YAML 1.2 document. Duplicate keys, unknown tags and alias explosions are
 * refused. Result: JSON {"value": ..., "positions": {"/json/pointer": [line,
 * column], ...}}, both counted from 1. A message names line and column too. */
int tk_yaml_to_json(const char* text, size_t size, tk_sink sink, void* user);

/* What each token of a tokenizer spells, as grammars see it. `eos`: the ids
 * that may end a text, possibly none. Shared by threads and matchers; the
 * tokenizer is needed only to make it, and matchers keep what they need. */
typedef struct tk_vocabulary tk_vocabulary;
int tk_vocabulary_new(
    const tk_tokenizer* tokenizer,
    const int32_t* eos,
    size_t count,
    tk_vocabulary** out,
    tk_sink sink,
    void* user);
void tk_vocabulary_free(tk_vocabulary* vocabulary);

/* Bounds on what a grammar may cost; exceeding one is an error. */
typedef struct tk_limits {
  uint64_t compile_steps; /* nodes built for the lexer; about 50 a us */
  uint64_t mask_steps;    /* lexer nodes built for one mask; about 14 a us */
  uint32_t mask_items;    /* parser items for one mask; about 20 a us */
  uint32_t row_items;     /* parser items at one place of the text */
  uint32_t lexer_states;  /* kept; 1 to 2 KB each */
  uint32_t grammar_size;  /* symbols in all productions */
} tk_limits;

/* The state of one text under a grammar. A matcher serves one thread at a time;
 * clones of it may run beside each other. */
typedef struct tk_matcher tk_matcher;
/* kind: "json_schema", "lark" (llguidance's dialect) or "regex". */
int tk_matcher_new(
    const tk_vocabulary* vocabulary,
    const char* kind,
    const char* source,
    size_t size,
    const tk_limits* limits,
    tk_matcher** out,
    tk_sink sink,
    void* user);
int tk_matcher_clone(
    const tk_matcher* matcher, tk_matcher** out, tk_sink sink, void* user);
void tk_matcher_free(tk_matcher* matcher);
/* Result: uint32 words, bit t % 32 of word t / 32 set when token t may follow;
 * end tokens when the text may end here. */
int tk_matcher_mask(tk_matcher* matcher, tk_sink sink, void* user);

enum {
  TK_MATCH_ACCEPTS = 1, /* the text is complete, it may still go on */
  TK_MATCH_ENDED = 2    /* nothing but an end token may follow */
};
/* Takes the next token (-1: none) and gives the bits of the new state. A token
 * outside the mask is an error, after which the matcher is of no use. */
int tk_matcher_accept(
    tk_matcher* matcher, int32_t id, int* state, tk_sink sink, void* user);

#ifdef __cplusplus
}
#endif
