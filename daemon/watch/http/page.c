/* The page as bytes, and its nonce. Pure; any thread. */
#include "daemon/watch/http/page.h"

#include <stdlib.h>
#include <string.h>

/* The assembler reads the file: it stays a file that a browser can open and a person can edit. */
__asm__(".pushsection .rodata\n"
        "page_begin: .incbin \"daemon/watch/http/page.html\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char page_begin[];

static const char placeholder[] = "NONCE";

char *page_with_nonce(const char *nonce, size_t *length)
{
    const size_t page_bytes = strlen(page_begin), nonce_bytes = strlen(nonce);
    size_t places = 0, at = 0;
    for (const char *p = page_begin; (p = strstr(p, placeholder)) != NULL; p += sizeof placeholder - 1)
        places++;
    char *text = malloc(page_bytes + places * nonce_bytes + 1);
    if (text == NULL)
        return NULL;
    const char *from = page_begin;
    for (const char *p; (p = strstr(from, placeholder)) != NULL; from = p + sizeof placeholder - 1) {
        memcpy(text + at, from, (size_t)(p - from));
        at += (size_t)(p - from);
        memcpy(text + at, nonce, nonce_bytes);
        at += nonce_bytes;
    }
    const size_t rest = strlen(from);
    memcpy(text + at, from, rest + 1);
    *length = at + rest;
    return text;
}
