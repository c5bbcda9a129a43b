/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of test matrices: what it accepts, what it rejects, and (given a file) the output of cover.py. */
#include "test/tools/cells.h"

static int failures;

#define EXPECT(what)                                                               \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			failures++;                                                \
		}                                                                  \
	} while (0)

static int read_text(const char *text, struct cells *out)
{
	FILE *in = fmemopen((void *)text, strlen(text), "r");
	int rc;

	if (!in)
		return -errno;
	rc = cells_read(in, out);
	fclose(in);
	return rc;
}

static void takes_cells(void)
{
	struct cells cells = { 0 };
	long n = -1;

	EXPECT(!read_text("# matrix\nranks=8 mode=ll\n\n\tranks=0x10  mode=ht extra=a=b", &cells));
	EXPECT(cells.count == 2);
	if (cells.count != 2)
		return;
	EXPECT(!cell_int(&cells.cell[0], "ranks", &n) && n == 8);
	EXPECT(!cell_int(&cells.cell[1], "ranks", &n) && n == 16);
	EXPECT(cell_int(&cells.cell[0], "mode", &n) == -EINVAL && n == 16);
	EXPECT(cell_int(&cells.cell[0], "extra", &n) == -ENOENT);
	EXPECT(!strcmp(cell_str(&cells.cell[1], "mode"), "ht"));
	EXPECT(!strcmp(cell_str(&cells.cell[1], "extra"), "a=b"));
	EXPECT(!cell_str(&cells.cell[0], "rank"));
	cells_free(&cells);
	EXPECT(!cells.count && !cells.cell);
}

static void refuses_the_rest(void)
{
	static const char *const bad[] = {
		" ", "# only a comment\n", "a=1\nb\n", "a=1 =2\n", "a= b=1\n", "a=1 a=2\n",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct cells cells = { .count = 77 };

		EXPECT(read_text(bad[i], &cells) == -EINVAL);
		EXPECT(cells.count == 77);
	}
}

static void bounds_factors(void)
{
	for (int factors = CELL_FACTORS; factors <= CELL_FACTORS + 1; factors++) {
		struct cells cells = { 0 };
		char text[16 * (CELL_FACTORS + 1)];
		int at = 0;

		for (int i = 0; i < factors; i++)
			at += snprintf(text + at, sizeof(text) - (size_t)at, "f%d=%d ", i, i);
		EXPECT(read_text(text, &cells) == (factors > CELL_FACTORS ? -EINVAL : 0));
		EXPECT(cells.count == (factors > CELL_FACTORS ? 0 : 1));
		cells_free(&cells);
	}
}

/* Every line of the generator is a cell with the same factors. */
static void reads_file(const char *path)
{
	struct cells cells = { 0 };
	FILE *in = fopen(path, "r");

	EXPECT(in && !cells_read(in, &cells) && cells.count > 1);
	if (in)
		fclose(in);
	for (int i = 0; i < cells.count; i++) {
		EXPECT(cells.cell[i].count == cells.cell[0].count);
		for (int k = 0; k < cells.cell[0].count; k++)
			EXPECT(cell_str(&cells.cell[i], cells.cell[0].name[k]));
	}
	cells_free(&cells);
}

int main(int argc, char **argv)
{
	takes_cells();
	refuses_the_rest();
	bounds_factors();
	for (int i = 1; i < argc; i++)
		reads_file(argv[i]);
	return failures != 0;
}
