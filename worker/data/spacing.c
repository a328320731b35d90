/* Decides where spaces stand between tokens, by lists of closing and opening marks in UTF-8. */
#include "worker/data/spacing.h"

#include <stddef.h>
#include <string.h>

/* In ASCII; then the right single and double quotation marks, the ellipsis, the right-pointing double angle
 * quotation mark, the ideographic comma and full stop. */
static const char closing[] =
    ".,;:!?)]}%'\xE2\x80\x99\xE2\x80\x9D\xE2\x80\xA6\xC2\xBB\xE3\x80\x81\xE3\x80\x82";
/* In ASCII; then the left single and double quotation marks, the left-pointing double angle quotation mark,
 * and the inverted exclamation and question marks. */
static const char opening[] = "([{\xE2\x80\x98\xE2\x80\x9C\xC2\xAB\xC2\xA1\xC2\xBF";

bool spacing_between(const char *before, const char *token)
{
    /* A token that is found in the marks is one of them: punctuation comes in tokens of one character. */
    return before != NULL && strstr(opening, before) == NULL && strstr(closing, token) == NULL;
}
