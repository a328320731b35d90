/* How a line of tokens is written for people: corpus.c took the punctuation off the words, this puts it back.
 * Pure. */
#ifndef WORKER_DATA_SPACING_H
#define WORKER_DATA_SPACING_H

#include <stdbool.h>

/* Whether a space stands between two tokens of a line, `before` NULL at its begin: none before a mark that
 * closes (full stop, comma, colon, a bracket's or a quotation's end), none behind one that opens. Marks that
 * do both, as the straight double quote and the hyphen, stand by themselves; a straight single quote closes,
 * as in "the fathers' house". */
bool spacing_between(const char *before, const char *token);

#endif
