/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells of a test matrix, as test/tools/cover.py prints them: lines of "name=value name=value ...". Empty lines and
 * lines that start with # are skipped. Anything else that is not a cell is an error: no matrix shrinks silently.
 */
#ifndef EP_TEST_CELLS_H
#define EP_TEST_CELLS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_FACTORS 40

struct cell {
	int count;
	char *text; /* owns the bytes that name and value point into */
	const char *name[CELL_FACTORS];
	const char *value[CELL_FACTORS];
};

struct cells {
	int count;
	struct cell *cell;
};

/* The value, or NULL when the cell has no such factor. */
static inline const char *cell_str(const struct cell *cell, const char *name)
{
	for (int i = 0; i < cell->count; i++)
		if (!strcmp(cell->name[i], name))
			return cell->value[i];
	return NULL;
}

/* 0 and the number, or -ENOENT (no such factor), or -EINVAL (not a number). */
static inline int cell_int(const struct cell *cell, const char *name, long *out)
{
	const char *value = cell_str(cell, name);
	char *end;
	long n;

	if (!value)
		return -ENOENT;
	errno = 0;
	n = strtol(value, &end, 0);
	if (end == value || *end || errno)
		return -EINVAL;
	*out = n;
	return 0;
}

static inline void cells_free(struct cells *cells)
{
	for (int i = 0; i < cells->count; i++)
		free(cells->cell[i].text);
	free(cells->cell);
	*cells = (struct cells){ 0 };
}

/* Parses text in place; -EINVAL: a word that is not name=value, a repeated name, or too many. */
static inline int cell_parse(char *text, struct cell *out)
{
	struct cell cell = { .text = text };
	char *save = NULL;

	for (char *word = strtok_r(text, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save)) {
		char *eq = strchr(word, '=');

		if (!eq || eq == word || !eq[1] || cell.count == CELL_FACTORS)
			return -EINVAL;
		*eq = '\0';
		if (cell_str(&cell, word))
			return -EINVAL;
		cell.name[cell.count] = word;
		cell.value[cell.count++] = eq + 1;
	}
	*out = cell;
	return 0;
}

/* Reads to the end of the file. -EINVAL: a line that is not a cell, or no cells; *out is not written then. */
static inline int cells_read(FILE *in, struct cells *out)
{
	struct cells cells = { 0 };
	char *line = NULL;
	size_t room = 0;
	int rc = 0;

	while (!rc && getline(&line, &room, in) >= 0) {
		struct cell cell, *more;

		if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
			continue;
		rc = cell_parse(line, &cell);
		if (rc)
			break;
		more = realloc(cells.cell, sizeof(*more) * (size_t)(cells.count + 1));
		if (!more) {
			rc = -ENOMEM;
			break;
		}
		cells.cell = more;
		cells.cell[cells.count++] = cell;
		line = NULL; /* owned by the cell */
		room = 0;
	}
	free(line);
	if (!rc && !cells.count)
		rc = -EINVAL;
	if (rc)
		cells_free(&cells);
	else
		*out = cells;
	return rc;
}

#endif
