/* Text functions behind a C interface: tokenizers, chat templates and YAML.
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

#ifdef __cplusplus
}
#endif
