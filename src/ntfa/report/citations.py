"""References, by the words that cite them: what a text cites is what it lists."""

from __future__ import annotations

from collections.abc import Sequence

CITATIONS = {
    "Abraham et al., 2014": "Abraham, A., Pedregosa, F., Eickenberg, M., Gervais, P., Mueller, A., Kossaifi, J., "
    "Gramfort, A., Thirion, B., & Varoquaux, G. (2014). Machine learning for neuroimaging with scikit-learn. Frontiers "
    "in Neuroinformatics, 8, 14.",
    "Behzadi et al., 2007": "Behzadi, Y., Restom, K., Liau, J., & Liu, T. T. (2007). A component based noise "
    "correction method (CompCor) for BOLD and perfusion based fMRI. NeuroImage, 37(1), 90-101.",
    "Burda et al., 2016": "Burda, Y., Grosse, R., & Salakhutdinov, R. (2016). Importance weighted autoencoders. "
    "International Conference on Learning Representations.",
    "Esteban et al., 2019": "Esteban, O., Markiewicz, C. J., Blair, R. W., Moodie, C. A., Isik, A. I., Erramuzpe, A., "
    "Kent, J. D., Goncalves, M., DuPre, E., Snyder, M., Oya, H., Ghosh, S. S., Wright, J., Durnez, J., Poldrack, R. "
    "A., & Gorgolewski, K. J. (2019). fMRIPrep: A robust preprocessing pipeline for functional MRI. Nature Methods, "
    "16(1), 111-116.",
    "Gershman et al., 2011": "Gershman, S. J., Blei, D. M., Pereira, F., & Norman, K. A. (2011). A topographic latent "
    "source model for fMRI data. NeuroImage, 57(1), 89-100.",
    "Horn, 1965": "Horn, J. L. (1965). A rationale and test for the number of factors in factor analysis. "
    "Psychometrika, 30(2), 179-185.",
    "Kingma & Ba, 2015": "Kingma, D. P., & Ba, J. (2015). Adam: A method for stochastic optimization. International "
    "Conference on Learning Representations.",
    "Manning et al., 2014": "Manning, J. R., Ranganath, R., Norman, K. A., & Blei, D. M. (2014). Topographic factor "
    "analysis: A Bayesian model for inferring brain networks from neural data. PLoS ONE, 9(5), e94914.",
    "Manning et al., 2018": "Manning, J. R., Zhu, X., Willke, T. L., Ranganath, R., Stachenfeld, K., Hasson, U., Blei, "
    "D. M., & Norman, K. A. (2018). A probabilistic approach to discovering dynamic full-brain functional connectivity "
    "patterns. NeuroImage, 180, 243-252.",
    "Paszke et al., 2019": "Paszke, A., Gross, S., Massa, F., Lerer, A., Bradbury, J., Chanan, G., Killeen, T., Lin, "
    "Z., Gimelshein, N., Antiga, L., Desmaison, A., Köpf, A., Yang, E., DeVito, Z., Raison, M., Tejani, A., "
    "Chilamkurthy, S., Steiner, B., Fang, L., ... Chintala, S. (2019). PyTorch: An imperative style, high-performance "
    "deep learning library. Advances in Neural Information Processing Systems, 32.",
    "Power et al., 2012": "Power, J. D., Barnes, K. A., Snyder, A. Z., Schlaggar, B. L., & Petersen, S. E. (2012). "
    "Spurious but systematic correlations in functional connectivity MRI networks arise from subject motion. "
    "NeuroImage, 59(3), 2142-2154.",
    "Sennesh et al., 2020": "Sennesh, E., Khan, Z., Wang, Y., Dy, J., Satpute, A. B., Hutchinson, J. B., & van de "
    "Meent, J.-W. (2020). Neural topographic factor analysis for fMRI data. Advances in Neural Information Processing "
    "Systems, 33.",
}


def references(paragraphs: Sequence[str]) -> list[str]:
    """List what the paragraphs cite, in alphabetical order."""
    return sorted(full for short, full in CITATIONS.items() if any(short in text for text in paragraphs))
