"""How answers are made comparable: lower case, no punctuation, no articles (THUDM/LongBench, LongBench/metrics.py).

The English rule is SQuAD's (Rajpurkar et al., 2016); the Chinese rule drops all white space and Chinese punctuation too.
"""

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
#: The marks that LongBench lists besides `string.punctuation`.
_CHINESE = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣"
    "､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_ENGLISH = str.maketrans("", "", string.punctuation)
_NO_CHINESE = str.maketrans("", "", string.punctuation + _CHINESE)


def english(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_ENGLISH)).split())


def chinese(text: str) -> str:
    """Lower case, without punctuation of either script and without white space."""
    return "".join(text.lower().translate(_NO_CHINESE).split())
