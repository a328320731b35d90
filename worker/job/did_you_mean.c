/* Suggestions for misspelt keys and values; see the header. */
#include "worker/job/did_you_mean.h"

#include "kernels/base/text.h"

#include <string.h>

enum { SUGGESTIONS_MAX = 3 };

/* One slip of the pen, or two in a longer word. */
static bool is_near(const char *word, const char *name)
{
    size_t distance = text_distance(word, name);
    size_t word_bytes = strlen(word), name_bytes = strlen(name);
    size_t longer = word_bytes > name_bytes ? word_bytes : name_bytes;
    return distance == 0 || (distance == 1 && longer >= 2) || (distance == 2 && longer >= 5);
}

static const struct job_key *nearest_member(unsigned kinds, const struct job_key *parent, const char *name)
{
    const struct job_key *best = NULL;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if ((key->kinds & kinds) != 0 && job_key_is_member(key, parent) && is_near(name, job_key_name(key)) &&
            (best == NULL ||
             text_distance(name, job_key_name(key)) < text_distance(name, job_key_name(best))))
            best = key;
    }
    return best;
}

void did_you_mean_key(char question[DID_YOU_MEAN_BYTES], unsigned kinds, const struct job_key *parent,
                      const char *name)
{
    const struct job_key *member = nearest_member(kinds, parent, name);
    size_t length = 0, count = 0;
    question[0] = '\0';
    if (member != NULL) {
        snprintf(question, DID_YOU_MEAN_BYTES, "; did you mean \"%s\"?", job_key_name(member));
        return;
    }
    for (size_t i = 0; i < job_key_count && count < SUGGESTIONS_MAX; i++) {
        const struct job_key *key = &job_keys[i];
        if (job_key_at(kinds, key->pointer) != key || text_distance(name, job_key_name(key)) != 0)
            continue;
        length += (size_t)snprintf(question + length, DID_YOU_MEAN_BYTES - length, "%s%s",
                                   count == 0 ? "; did you mean " : " or ", key->pointer);
        count++;
    }
    if (count > 0)
        snprintf(question + length, DID_YOU_MEAN_BYTES - length, "?");
}

void did_you_mean_value(char question[DID_YOU_MEAN_BYTES], const struct job_key *key, const char *got)
{
    const bool numbered = key->type == JOB_ROUND || key->type == JOB_PLACE;
    char word[JOB_NAME_BYTES]; /* of these, the name before the number */
    question[0] = '\0';
    snprintf(word, sizeof word, "%.*s", (int)strcspn(got, numbered ? " " : ""), got);
    for (size_t i = 0; key->names != NULL && key->names[i] != NULL; i++)
        if (is_near(word, key->names[i]) && strcmp(word, key->names[i]) != 0)
            snprintf(question, DID_YOU_MEAN_BYTES, "; did you mean \"%s\"?", key->names[i]);
}
