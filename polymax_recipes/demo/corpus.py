"""A small English-French corpus, written for the demo: simple sentences that share their words.

One pair a line, English before the bar; words are separated by spaces, and a French elision is its own word.
"""

# the pair whose word alignment the demo draws
SHOWN = (
    "the girl does not want to eat the green apple because it is too hard",
    "la fille ne veut pas manger la pomme verte parce qu' elle est trop dure",
)

TEXT = """
the girl eats an apple | la fille mange une pomme
the boy eats an apple | le garçon mange une pomme
the girl eats bread | la fille mange du pain
the boy eats the bread | le garçon mange le pain
the little girl sleeps | la petite fille dort
the little boy sleeps | le petit garçon dort
the little girl reads | la petite fille lit
the woman reads a book | la femme lit un livre
the man reads the book | l' homme lit le livre
the boy reads a little book | le garçon lit un petit livre
the girl wants an apple | la fille veut une pomme
the boy wants bread | le garçon veut du pain
the woman wants the book | la femme veut le livre
the man wants to sleep | l' homme veut dormir
the girl wants to read | la fille veut lire
the boy wants to eat | le garçon veut manger
the woman wants to eat the bread | la femme veut manger le pain
the little boy wants to eat an apple | le petit garçon veut manger une pomme
they want to sleep | ils veulent dormir
they want to eat | ils veulent manger
i want to read the book | je veux lire le livre
i want to sleep | je veux dormir
i eat an apple | je mange une pomme
i read a book | je lis un livre
the apple is green | la pomme est verte
the apple is red | la pomme est rouge
the green apple is on the table | la pomme verte est sur la table
the red apple is under the table | la pomme rouge est sous la table
the book is green | le livre est vert
the book is on the table | le livre est sur la table
the green book is under the chair | le livre vert est sous la chaise
the red book is on the chair | le livre rouge est sur la chaise
the house is red | la maison est rouge
the green house is old | la maison verte est vieille
the red house is small | la maison rouge est petite
the chair is hard | la chaise est dure
the bread is hard | le pain est dur
the bread is old | le pain est vieux
the old bread is too hard | le vieux pain est trop dur
the apple is too hard | la pomme est trop dure
the chair is too hard | la chaise est trop dure
the soup is hot | la soupe est chaude
the soup is too hot | la soupe est trop chaude
the soup is cold | la soupe est froide
the water is cold | l' eau est froide
the water is too cold | l' eau est trop froide
the house is too old | la maison est trop vieille
the table is too small | la table est trop petite
the girl does not sleep | la fille ne dort pas
the boy does not sleep | le garçon ne dort pas
the woman does not eat | la femme ne mange pas
the man does not read | l' homme ne lit pas
the girl does not eat the soup | la fille ne mange pas la soupe
the boy does not eat the apple | le garçon ne mange pas la pomme
the man does not want the book | l' homme ne veut pas le livre
the woman does not want the chair | la femme ne veut pas la chaise
the boy does not want to sleep | le garçon ne veut pas dormir
the girl does not want to read | la fille ne veut pas lire
the man does not want to eat | l' homme ne veut pas manger
the girl does not want to eat the soup | la fille ne veut pas manger la soupe
i do not sleep | je ne dors pas
i do not want to eat | je ne veux pas manger
i do not read the book | je ne lis pas le livre
i do not want the soup | je ne veux pas la soupe
they do not sleep | ils ne dorment pas
they do not want to read | ils ne veulent pas lire
they do not want the bread | ils ne veulent pas le pain
the apple is not red | la pomme n' est pas rouge
the soup is not hot | la soupe n' est pas chaude
the house is not small | la maison n' est pas petite
the bread is not hard | le pain n' est pas dur
the girl is not old | la fille n' est pas vieille
the boy does not read because he sleeps | le garçon ne lit pas parce qu' il dort
the girl sleeps because she is small | la fille dort parce qu' elle est petite
the man sleeps because he is old | l' homme dort parce qu' il est vieux
i sleep because it is cold | je dors parce qu' il fait froid
i eat because i want to eat | je mange parce que je veux manger
i do not eat the bread because it is hard | je ne mange pas le pain parce qu' il est dur
i do not eat the soup because it is cold | je ne mange pas la soupe parce qu' elle est froide
the boy eats the apple because it is red | le garçon mange la pomme parce qu' elle est rouge
the woman wants the house because it is old | la femme veut la maison parce qu' elle est vieille
she does not want the chair because it is too hard | elle ne veut pas la chaise parce qu' elle est trop dure
he does not want the bread because it is too old | il ne veut pas le pain parce qu' il est trop vieux
it is too cold | il fait trop froid
it is not cold | il ne fait pas froid
she eats the green apple | elle mange la pomme verte
he eats the red apple | il mange la pomme rouge
she reads because she wants to read | elle lit parce qu' elle veut lire
he does not want to eat | il ne veut pas manger
she does not want to sleep | elle ne veut pas dormir
the little girl eats the green apple | la petite fille mange la pomme verte
the little boy does not eat the soup | le petit garçon ne mange pas la soupe
the cat sleeps on the chair | le chat dort sur la chaise
the little cat sleeps under the table | le petit chat dort sous la table
the cat does not want the water | le chat ne veut pas l' eau
the cat wants to eat because it is small | le chat veut manger parce qu' il est petit
the old man eats the hot soup | le vieil homme mange la soupe chaude
the old woman reads a green book | la vieille femme lit un livre vert
the woman and the man read | la femme et l' homme lisent
the girl and the boy eat | la fille et le garçon mangent
the bread and the soup are on the table | le pain et la soupe sont sur la table
the green apple and the red apple are hard | la pomme verte et la pomme rouge sont dures
"""


def pairs() -> list[tuple[list[str], list[str]]]:
    """All sentence pairs as lists of words, English first; the shown pair is the last."""
    lines = [line.split(" | ") for line in TEXT.strip().splitlines()]
    return [(english.split(), french.split()) for english, french in [*lines, SHOWN]]
