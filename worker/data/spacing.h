/* Where spaces stand when tokens are written as a line for people: the reverse of tokenize.h, which took the
 * punctuation off the words. Pure. */
#ifndef WORKER_DATA_SPACING_H
#define WORKER_DATA_SPACING_H

#include <stdbool.h>

/* Whether a space stands between two tokens of a line; `before` is NULL at the beginning of the line. No
 * space stands before a closing mark (full stop, comma, colon, closing bracket or quotation mark) nor behind
 * an opening one. Marks that do both, such as the straight double quote and the hyphen, have spaces around
 * them; a straight single quote closes, as in "the fathers' house". */
bool spacing_between(const char *before, const char *token);

#endif
