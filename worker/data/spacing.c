/* The closing and the opening marks, each one character in UTF-8. Used by `coalesced generate`. */
#include "worker/data/spacing.h"

#include <stddef.h>
#include <string.h>

static const char *const closing[] = {
    ".",
    ",",
    ";",
    ":",
    "!",
    "?",
    ")",
    "]",
    "}",
    "%",
    "'",
    "\xE2\x80\x99", /* right single quotation mark */
    "\xE2\x80\x9D", /* right double quotation mark */
    "\xE2\x80\xA6", /* horizontal ellipsis */
    "\xC2\xBB",     /* right-pointing double angle quotation mark */
    "\xE3\x80\x81", /* ideographic comma */
    "\xE3\x80\x82", /* ideographic full stop */
};
static const char *const opening[] = {
    "(",
    "[",
    "{",
    "\xE2\x80\x98", /* left single quotation mark */
    "\xE2\x80\x9C", /* left double quotation mark */
    "\xC2\xAB",     /* left-pointing double angle quotation mark */
    "\xC2\xA1",     /* inverted exclamation mark */
    "\xC2\xBF",     /* inverted question mark */
};

static bool is_one_of(const char *token, const char *const *marks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(token, marks[i]) == 0)
            return true;
    return false;
}

bool spacing_between(const char *before, const char *token)
{
    return before != NULL && !is_one_of(before, opening, sizeof opening / sizeof *opening) &&
           !is_one_of(token, closing, sizeof closing / sizeof *closing);
}
